"""The image, built with buildah, and containers of it, run by podman. Both need root."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[2]
BASE_IMAGE = "localhost/python-base:bookworm"
"""Stands in for the Dockerfile's base image, for machines that reach no registry of images."""
BASE_PACKAGES = "python3,python3-venv,ca-certificates,curl"
PROGRAMS = ("buildah", "podman", "runc", "mmdebstrap")
START_SECONDS = 120
CONTAINERS_CONF = """
[containers]
default_ulimits = ["nofile=8192:8192", "nproc=8192:8192"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
"""


def missing() -> str | None:
    """Reason to skip these tests; None where they run."""
    if not os.environ.get("CONTAINER_TESTS"):
        return "only `make test-deploy` builds images"
    if os.geteuid() != 0:
        return "building and running images needs root"
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    return f"{', '.join(absent)} not installed" if absent else None


def podman(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run podman, whose standard output and error come together."""
    return subprocess.run(
        ["podman", *arguments],
        check=check,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=_environment(),
    )


@cache
def build_image(target: str = "cpu", *options: str) -> str:
    """Build a target of the Dockerfile, once; return its name. What is built already is reused."""
    _build_base()
    tag = f"localhost/tokenloom-test:{target}"
    settings = ROOT / "build/image-pip.conf"
    settings.parent.mkdir(exist_ok=True)
    folders = [
        str(Path(folder).resolve())
        for folder in os.environ.get("PIP_FIND_LINKS", "").split()
        if Path(folder).is_dir()
    ]
    lines = ["[global]", "cert = /etc/ssl/certs/ca-certificates.crt", "find-links ="]
    settings.write_text("\n".join([*lines, *(f"    {folder}" for folder in folders)]) + "\n")
    command = ["buildah", "bud", "--layers", "--isolation=chroot", "--network=host"]
    command += ["--format=docker", f"--build-arg=BASE_IMAGE={BASE_IMAGE}", f"--target={target}"]
    for folder in ("/etc/ssl/certs", *folders):
        command += [f"--volume={folder}:{folder}:ro"]
    command += [f"--volume={settings}:/etc/pip.conf:ro", *options, f"--tag={tag}", str(ROOT)]
    subprocess.run(command, check=True)
    return tag


def _build_base() -> None:
    if podman("image", "exists", BASE_IMAGE, check=False).returncode == 0:
        return
    archive = ROOT / "build/base.tar"
    archive.parent.mkdir(exist_ok=True)
    bootstrap = ["mmdebstrap", "--variant=minbase", f"--include={BASE_PACKAGES}"]
    subprocess.run([*bootstrap, "bookworm", str(archive)], check=True)
    path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    podman("import", "--change", f"ENV {path}", str(archive), BASE_IMAGE)
    archive.unlink()


@cache
def _environment() -> dict[str, str]:
    """Settings of podman that suit machines without systemd."""
    settings = ROOT / "build/containers.conf"
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(CONTAINERS_CONF)
    return {**os.environ, "CONTAINERS_CONF": str(settings), "DISABLE_HC_SYSTEMD": "true"}


@dataclass(frozen=True)
class Container:
    """A container, and the server in it."""

    name: str
    url: str

    def logs(self) -> str:
        return podman("logs", self.name).stdout

    def inspect(self, field: str) -> Any:  # noqa: ANN401 - JSON
        text = podman("inspect", "--type=container", f"--format={{{{json .{field}}}}}", self.name)
        return json.loads(text.stdout)

    def execute(self, *command: str) -> str:
        return podman("exec", self.name, *command).stdout

    def wait_until_healthy(self) -> None:
        """Raises AssertionError with the log if the server ends or takes too long."""
        deadline = time.monotonic() + START_SECONDS
        while not self._is_healthy():
            assert self.inspect("State.Running"), self.logs()
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.2)

    def _is_healthy(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=5).status_code == 200
        except httpx.TransportError:
            return False


@contextmanager
def running(
    image: str, *arguments: str, options: tuple[str, ...] = (), port: int = 80
) -> Iterator[Container]:
    """Run a container until the block is left. `port`: that of its server."""
    published = free_port()
    publish = ("--publish", f"127.0.0.1:{published}:{port}")
    started = podman("run", "--detach", *publish, *options, image, *arguments, check=False)
    assert started.returncode == 0, started.stdout
    container = Container(started.stdout.split()[-1], f"http://127.0.0.1:{published}")
    try:
        container.wait_until_healthy()
        yield container
    finally:
        podman("rm", "--force", "--volumes", "--time=0", container.name)


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port
