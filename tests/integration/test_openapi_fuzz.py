"""No request body leads to a 5xx: schemathesis' bodies, and each JSON type in each place."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from transformers import AutoTokenizer

from tests.integration.json_types import BODIES, documented, faults, mutations
from tests.integration.random_model import save_random_model
from tests.integration.serving import Server, serve

TGI = (
    "^/(generate|generate_stream|tokenize|chat_tokenize|vertex|invocations|info|health|ping|metrics"
    ")?$"
)
OPENAI = "^/v1/"
LIMITS = ("--max-total-tokens", "80", "--max-input-tokens", "72")
"""Room for a chat's marks, and no long answers."""
SECONDS = 300


@pytest.fixture(scope="module")
def random_server(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server over a tiny random Llama, whose texts are short."""
    folder = tmp_path_factory.mktemp("random")
    save_random_model(folder, AutoTokenizer.from_pretrained(model_path))
    with serve(folder / "log", "--model-id", str(folder), *LIMITS) as server:
        yield server


def test_no_request_to_tgis_routes_is_a_server_error(random_server: Server, tmp_path: Path) -> None:
    engine = random_server.engine_pid()
    run = schemathesis(random_server, TGI, tmp_path)
    assert run.returncode == 0, run.stdout
    assert "Selected: 11/" in run.stdout, run.stdout
    assert random_server.engine_pid() == engine, "it is still the first"


def test_no_request_to_openais_routes_is_a_server_error(
    random_server: Server, tmp_path: Path
) -> None:
    engine = random_server.engine_pid()
    run = schemathesis(random_server, OPENAI, tmp_path, examples=4)
    assert run.returncode == 0, run.stdout
    assert "Selected: 5/" in run.stdout, run.stdout
    assert random_server.engine_pid() == engine, "it is still the first"


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_every_json_type_in_every_place(
    random_server: Server, path: str, body: dict[str, Any]
) -> None:
    engine = random_server.engine_pid()
    with httpx.Client(base_url=random_server.url, timeout=60) as client:
        assert client.post(path, json=body).status_code == 200, "the body as it is"
        number, found = faults(client, ((path, changed) for changed in mutations(body)))
    assert number > 17 * len(body)
    assert not found, "\n".join(found[:20])
    assert random_server.engine_pid() == engine, "it is still the first"


def test_every_json_type_in_every_documented_field(random_server: Server) -> None:
    with httpx.Client(base_url=random_server.url, timeout=60) as client:
        number, found = faults(client, documented(client))
    assert number > 1000
    assert not found, "\n".join(found[:20])


def schemathesis(
    server: Server, paths: str, folder: Path, examples: int = 20
) -> subprocess.CompletedProcess[str]:
    """Ask whatever the document allows, and does not, of the paths that match.

    Workers are threads. Where schemas are deep, Python 3.11's parser mistakes the depth of one
    thread for that of another, and schemathesis ends with a SystemError: so there is one worker.
    """
    return subprocess.run(
        [
            Path(f"{sys.prefix}-clients", "bin", "schemathesis"),
            *("run", f"{server.url}/api-doc/openapi.json"),
            *("--include-path-regex", paths, "--checks", "not_a_server_error"),
            *("--phases", "examples,coverage,fuzzing", "--max-examples", str(examples)),
            *("--workers", "1"),
            *("--seed", "1", "--no-shrink", "--suppress-health-check", "all"),
            *("--continue-on-failure", "--request-timeout", "60", "--warnings", "off"),
        ],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
