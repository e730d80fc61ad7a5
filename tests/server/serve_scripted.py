"""Runs a server over the scripted engine. Its argument is a tokenizer file."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.server.running import scripted_router
from tokenloom_engine.logs import configure_logging
from tokenloom_router.metrics import Metrics
from tokenloom_server.serve import run
from tokenloom_server.settings import Settings

if __name__ == "__main__":
    settings = Settings()
    configure_logging(json_output=settings.json_output)
    metrics = Metrics()
    sys.exit(run(settings, scripted_router(settings, metrics, Path(sys.argv[1])), metrics))
