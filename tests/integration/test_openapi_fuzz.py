"""Whatever schemathesis makes of the OpenAPI document, the server never answers 5xx."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from transformers import AutoTokenizer

from tests.integration.random_model import save_random_model
from tests.integration.serving import serve

PATHS = (
    "^/(generate|generate_stream|tokenize|chat_tokenize|vertex|invocations|info|health|ping|metrics"
    ")?$"
)
LIMITS = ("--max-total-tokens", "32", "--max-input-tokens", "24")
SECONDS = 300


def test_no_request_is_a_server_error(model_path: Path, tmp_path: Path) -> None:
    save_random_model(tmp_path, AutoTokenizer.from_pretrained(model_path))
    with serve(tmp_path / "log", "--model-id", str(tmp_path), *LIMITS) as server:
        engine = server.engine_pid()
        run = subprocess.run(
            [
                Path(f"{sys.prefix}-clients", "bin", "schemathesis"),
                *("run", f"{server.url}/api-doc/openapi.json"),
                *("--include-path-regex", PATHS, "--checks", "not_a_server_error"),
                *(
                    "--phases",
                    "examples,coverage,fuzzing",
                    "--max-examples",
                    "20",
                    "--workers",
                    "2",
                ),
                *("--seed", "1", "--no-shrink", "--suppress-health-check", "all"),
                *("--continue-on-failure", "--request-timeout", "60", "--warnings", "off"),
            ],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert run.returncode == 0, run.stdout
        assert "Selected: 11/" in run.stdout, run.stdout
        assert server.engine_pid() == engine, "it is still the first"
