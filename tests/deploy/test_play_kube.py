"""The chart's Deployment, run by podman, which has no cluster behind it."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import pytest
import yaml

from tests.deploy.container_image import Container, build_image, missing, podman
from tests.deploy.helm_chart import render, server

REASON = missing() or (None if shutil.which("helm") else "helm is not installed")
POD = "tokenloom-pod-0"


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_the_rendered_deployment_answers(tmp_path: Path) -> None:
    repository, tag = build_image().rsplit(":", 1)
    image = {"repository": repository, "tag": tag, "pullPolicy": "Never"}
    manifests = render({"image": image})
    (port,) = server(manifests)["ports"]
    file = tmp_path / "deployment.yaml"
    file.write_text(yaml.safe_dump(manifests["Deployment", "tokenloom"]))
    podman("play", "kube", str(file))
    try:
        container = Container(f"{POD}-tokenloom", f"http://127.0.0.1:{port['containerPort']}")
        container.wait_until_healthy()
        assert httpx.get(f"{container.url}/readyz").status_code == 200
        body = {"inputs": "Water boils at", "parameters": {"max_new_tokens": 4}}
        answer = httpx.post(f"{container.url}/generate", json=body, timeout=60)
        assert answer.json()["generated_text"]
        podman("stop", "--time=30", container.name)
        assert container.inspect("State.ExitCode") == 0
    finally:
        podman("play", "kube", "--down", str(file))
