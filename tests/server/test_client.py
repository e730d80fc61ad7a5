"""The address of whoever asks reaches what is shared out between clients."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.running import running
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.constraints.trials.trials import Admission, Trials

GRAMMAR = {"type": "regex", "value": "a"}
TGI: dict[str, Any] = {"inputs": "x", "parameters": {"grammar": GRAMMAR, "max_new_tokens": 2}}
OPENAI: dict[str, Any] = {
    "max_tokens": 2,
    "prompt": "x",
    "structured_outputs": {"regex": "a"},
}
BODIES = {
    "/generate": TGI,
    "/generate_stream": TGI,
    "/v1/completions": OPENAI,
    "/vertex": {"instances": [TGI]},
}


def test_each_route_says_who_asks(tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clients: list[str] = []
    start = Trials.start

    def watched(self: Trials, spec: ConstraintSpec, client: str = "") -> Future[Admission]:
        clients.append(client)
        return start(self, spec, client)

    monkeypatch.setattr(Trials, "start", watched)
    with running(tokenizer_file) as server, httpx.Client(base_url=server.url) as http:
        clients.clear()
        for i, (path, body) in enumerate(BODIES.items()):
            http.post(path, json=body)
            http.post(path, json=body, headers={"x-forwarded-for": f"192.0.2.{i}"})
            assert clients == ["127.0.0.1", f"192.0.2.{i}"], path
            clients.clear()
