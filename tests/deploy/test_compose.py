"""deploy/compose.yaml names files, ports and variables that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tokenloom_server.http_server import LAST_SECONDS
from tokenloom_server.settings import Settings

DEPLOY = Path(__file__).parents[2] / "deploy"
FILE = DEPLOY / "compose.yaml"
VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    """The services, with the default of each variable."""
    text = VARIABLE.sub(lambda found: found[2], FILE.read_text())
    found: dict[str, dict[str, Any]] = yaml.safe_load(text)["services"]
    return found


def test_every_mounted_file_exists(services: dict[str, dict[str, Any]]) -> None:
    volumes = yaml.safe_load(FILE.read_text())["volumes"]
    sources = [
        volume.split(":")[0] for service in services.values() for volume in service["volumes"]
    ]
    files = [source for source in sources if source.startswith("./")]
    assert len(files) == 4
    assert all((DEPLOY / file).exists() for file in files)
    assert set(sources) - set(files) == set(volumes)


def test_images_have_versions(services: dict[str, dict[str, Any]]) -> None:
    for service in services.values():
        assert re.fullmatch(r"[\w/-]+:v?[0-9]+\.[0-9]+\.[0-9]+", service["image"])


def test_prometheus_scrapes_the_port_of_the_server(services: dict[str, dict[str, Any]]) -> None:
    server = services["tokenloom"]
    port = server["environment"]["PORT"]
    assert server["ports"] == [f"8080:{port}"]
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yaml").read_text())
    (job,) = config["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"tokenloom:{port}"]}]
    mounted = [volume.split(":")[1] for volume in services["prometheus"]["volumes"]]
    assert set(config["rule_files"]) < set(mounted)


def test_the_variables_are_settings(services: dict[str, dict[str, Any]]) -> None:
    environment = services["tokenloom"]["environment"]
    assert {name.lower() for name in environment} <= Settings.model_fields.keys()


def test_a_stop_leaves_time_for_running_requests(services: dict[str, dict[str, Any]]) -> None:
    seconds = int(services["tokenloom"]["stop_grace_period"].removesuffix("s"))
    drain = Settings.model_fields["graceful_termination_timeout"].default
    assert seconds > drain + LAST_SECONDS


def test_the_gpu_file_changes_the_server_alone() -> None:
    gpu = yaml.safe_load((DEPLOY / "compose.gpu.yaml").read_text())
    assert gpu["services"].keys() == {"tokenloom"}
    dockerfile = (DEPLOY.parent / "Dockerfile").read_text()
    target = gpu["services"]["tokenloom"]["build"]["target"]
    assert f" AS {target}\n" in dockerfile
