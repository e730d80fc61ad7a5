"""The Helm chart, rendered, and the parts of what it renders."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm/tokenloom"

Manifests = dict[tuple[str, str], dict[str, Any]]
"""Rendered objects, by kind and name."""


def run(*command: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), input=stdin, capture_output=True, text=True, check=False
    )


def helm_template(values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    options = ["--namespace", "tokenloom", "--values", "-"]
    return run("helm", "template", "tokenloom", CHART, *options, stdin=json.dumps(values))


def objects(text: str) -> Manifests:
    documents = [document for document in yaml.safe_load_all(text) if document]
    manifests = {(each["kind"], each["metadata"]["name"]): each for each in documents}
    assert len(manifests) == len(documents)
    return manifests


def render(values: dict[str, Any]) -> Manifests:
    result = helm_template(values)
    assert result.returncode == 0, result.stderr
    return objects(result.stdout)


def pods(manifests: Manifests) -> Iterator[dict[str, Any]]:
    for (kind, _), manifest in manifests.items():
        if kind == "Deployment":
            yield manifest["spec"]["template"]


def pod_spec(manifests: Manifests, deployment: str = "tokenloom") -> dict[str, Any]:
    spec = manifests["Deployment", deployment]["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def server(manifests: Manifests) -> dict[str, Any]:
    (container,) = pod_spec(manifests)["containers"]
    assert isinstance(container, dict)
    return container


def environment(container: dict[str, Any]) -> dict[str, str | None]:
    return {variable["name"]: variable.get("value") for variable in container.get("env", ())}


def mounts(container: dict[str, Any]) -> dict[str, str]:
    return {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
