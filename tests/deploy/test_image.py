"""The Dockerfile; and, where containers can be run, the image with users' own commands."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.deploy.container_image import Container, build_image, missing, podman, running

ROOT = Path(__file__).parents[2]
REASON = missing()
needs_containers = pytest.mark.skipif(REASON is not None, reason=str(REASON))
BODY = {"inputs": "Water boils at", "parameters": {"max_new_tokens": 4}}
MODEL = "/data/SmolLM2.gguf"
GIB = 1 << 30
MAX_GIB = 1.45
"""Largest size of the CPU image. A quarter of it is the base that the tests build."""


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is not installed")
def test_the_dockerfile_has_no_findings() -> None:
    linted = subprocess.run(["hadolint", str(ROOT / "Dockerfile")], capture_output=True, text=True)
    assert (linted.returncode, linted.stdout) == (0, "")


def test_the_version_is_that_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nARG VERSION={version}\n" in (ROOT / "Dockerfile").read_text()


@pytest.fixture(scope="module")
def image() -> str:
    return build_image()


@pytest.fixture(params=[0, 1000], ids=["root's folder", "a user's folder"])
def owner(request: pytest.FixtureRequest) -> int:
    owner: int = request.param
    return owner


@pytest.fixture
def data(tmp_path: Path, gguf_path: Path, owner: int) -> Path:
    """A folder of the host with a model."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0o755)
    shutil.copy(gguf_path, folder / Path(MODEL).name)
    os.chown(folder, owner, owner)
    return folder


@needs_containers
def test_tgis_command(image: str, data: Path, owner: int) -> None:
    options = ("--volume", f"{data}:/data")
    with running(image, "--model-id", MODEL, options=options) as container:
        for command in readmes_commands(container.url):
            answered = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
            assert answered.returncode == 0, answered.stderr
            assert re.search('"generated_text": ?"|"choices":', answered.stdout), answered.stdout
        assert is_healthy(container)
        status = container.execute("cat", "/proc/1/status")
        assert re.search(rf"^Uid:\t{owner}\t{owner}\t", status, re.M)
        assert re.search(r"^CapEff:\t0000000000000400$", status, re.M), "CAP_NET_BIND_SERVICE alone"
    assert {path.stat().st_uid for path in data.iterdir() if path.name != "SmolLM2.gguf"} == {owner}
    assert (data / "cache/tokenloom/models").is_dir()


def readmes_commands(url: str) -> Iterator[str]:
    blocks = re.findall(r"```sh\n(curl.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        yield block.replace("http://127.0.0.1:3000", url).replace("curl ", "curl -fsS ", 1)


def is_healthy(container: Container) -> bool:
    checked = podman("healthcheck", "run", container.name, check=False)
    health = podman("inspect", "--format={{.State.Health.Status}}", container.name).stdout.strip()
    return checked.returncode == 0 and health == "healthy"


LOCKED_DOWN = (
    *("--read-only", "--read-only-tmpfs=false", "--user=54321:0", "--cap-drop=all"),
    *("--security-opt=no-new-privileges", "--memory=3g", "--cpus=1"),
)


@needs_containers
def test_any_user_without_rights_on_a_read_only_root(image: str) -> None:
    options = (*LOCKED_DOWN, "--env=PORT=8080")
    with running(image, "serve", "--json-output", options=options, port=8080) as container:
        assert is_healthy(container)
        assert "Uid:\t54321" in container.execute("cat", "/proc/1/status")
        report = container.execute("tokenloom", "env")
        assert re.search(r"1 of \d+ cores usable", report)
        available = re.search(r"GiB, ([\d.]+) GiB available", report)
        assert available is not None and float(available[1]) < 3
        # Of SmolLM2-135M in bfloat16: 30 layers with 3 heads of 64 numbers, keys and values.
        tokens = httpx.get(f"{container.url}/info").json()["max_batch_total_tokens"]
        assert tokens * 30 * 3 * 64 * 2 * 2 < 3 * GIB / 4
        lets_a_stream_end(container)


def lets_a_stream_end(container: Container) -> None:
    parameters = {"max_new_tokens": 200, "ignore_eos": True, "details": True}
    body = {"inputs": "Once upon a time,", "parameters": parameters}
    url = f"{container.url}/generate_stream"
    with (
        ThreadPoolExecutor(1) as thread,
        httpx.stream("POST", url, json=body, timeout=60) as response,
    ):
        lines = (line for line in response.iter_lines() if line.startswith("data:"))
        first = next(lines)
        stopped = thread.submit(podman, "stop", "--time=100", container.name)
        events = [json.loads(line.removeprefix("data:")) for line in (first, *lines)]
        stopped.result()
    assert len(events) == 200
    assert events[-1]["details"]["finish_reason"] == "length"
    assert container.inspect("State.ExitCode") == 0, container.logs()


@needs_containers
def test_a_port_that_needs_privileges(image: str) -> None:
    ended = podman("run", "--rm", "--user=54321:0", "--network=none", image, check=False)
    assert ended.returncode == 1
    assert "cannot listen on 0.0.0.0 port 80: Permission denied; take a port of" in ended.stdout


@needs_containers
def test_without_capabilities_root_stays_root(image: str) -> None:
    options = ("--cap-drop=all", "--read-only")
    with running(image, "--port=8080", options=options, port=8080) as container:
        status = container.execute("cat", "/proc/1/status")
        assert "Uid:\t0\t" in status and re.search(r"^CapEff:\t0+$", status, re.M)
        assert is_healthy(container), "the flag names the port"


@needs_containers
def test_vertexs_environment(image: str) -> None:
    routes = {"HEALTH": "/v1/endpoints/1/deployedModels/2", "PREDICT": "/predict"}
    options = [f"--env=AIP_{name}_ROUTE={path}" for name, path in routes.items()]
    options += ["--env=AIP_HTTP_PORT=8123"]
    with running(image, options=(*options, "--init"), port=8123) as container:
        assert httpx.get(container.url + routes["HEALTH"]).status_code == 200
        predicted = httpx.post(container.url + routes["PREDICT"], json={"instances": [BODY]})
        assert len(predicted.json()["predictions"]) == 1
        assert is_healthy(container)


@needs_containers
def test_sagemaker(model_path: Path) -> None:
    image = build_image("sagemaker", "--build-arg=SAGEMAKER_BASE=runtime-cpu")
    volume = ("--volume", f"{model_path}:/opt/ml/model:ro")
    with running(image, "serve", options=volume, port=8080) as container:
        assert httpx.get(f"{container.url}/ping").status_code == 200
        answered = httpx.post(f"{container.url}/invocations", json=BODY, timeout=60)
        assert answered.status_code == 200, answered.text
        assert is_healthy(container)
    bound = (*volume, "--env=SAGEMAKER_BIND_TO_PORT=8200", "--env=SM_NUM_GPUS=0")
    with running(image, "serve", options=bound, port=8200) as container:
        assert is_healthy(container)
    ended = podman("run", "--rm", "--env=HF_HUB_OFFLINE=1", image, "serve", check=False)
    assert ended.returncode == 1
    assert "/opt/ml/model" in ended.stdout.splitlines()[-1]


@needs_containers
def test_other_commands(image: str) -> None:
    assert "tokenloom:" in podman("run", "--rm", image, "env").stdout
    assert podman("run", "--rm", "--entrypoint=hf", image, "version").returncode == 0
    refused = podman("run", "--rm", image, "--no-such-flag", check=False)
    assert refused.returncode == 2 and "--no-such-flag" in refused.stdout


@needs_containers
def test_the_image_itself(image: str) -> None:
    (found,) = json.loads(podman("image", "inspect", image).stdout)
    labels = found["Labels"]
    assert labels["org.opencontainers.image.title"] == "tokenloom"
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    size = found["Size"] / GIB
    print(f"{image}: {size:.2f} GiB")  # noqa: T201
    assert size < MAX_GIB
    libraries = "/opt/tokenloom/lib/python3.11/site-packages/tokenloom_engine/kernels/prebuilt"
    listed = podman("run", "--rm", "--entrypoint=ls", image, libraries).stdout.split()
    assert len(listed) == len({name.split("-")[0] for name in listed}) > 1


@needs_containers
def test_the_cuda_target_compiles_as_triton_does() -> None:
    image = build_image("cuda")  # with whatever build of PyTorch pip finds
    program = (
        "import os, subprocess, sysconfig;"
        "open('/tmp/a.c', 'w').write('#include <Python.h>\\n#include <stdint.h>\\n');"
        "command = [os.environ['CC'], '-shared', '-fPIC', '/tmp/a.c', '-o', '/tmp/a.so'];"
        "subprocess.run([*command, '-I' + sysconfig.get_path('include')], check=True)"
    )
    podman("run", "--rm", "--entrypoint=python", image, "-c", program)
    assert "tokenloom:" in podman("run", "--rm", image, "env").stdout
