"""What the integration tests share: one server over the bundled model, in float32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.serving import Server, serve


@pytest.fixture(scope="session")
def server(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with defaults, but float32, in which sums depend least on their order."""
    log = tmp_path_factory.mktemp("server") / "log"
    with serve(log, "--model-id", str(model_path), "--dtype", "float32") as server:
        yield server
