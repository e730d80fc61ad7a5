"""How OpenAI's routes sample: as generation_config.json says, unless the request does (C034)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.integration.openai_api import CHAT, COMPLETIONS, ask
from tests.integration.random_model import save_random_model
from tests.integration.serving import Json, Server, serve

DEFAULTS = {"top_k": 1, "temperature": 0.1, "repetition_penalty": 0.01, "do_sample": True}
ROUTES: dict[str, Json] = {
    CHAT: {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 12},
    COMPLETIONS: {"prompt": "Hi", "max_tokens": 12},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 12},
}


@pytest.fixture(scope="module")
def server(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A tiny model with random weights, whose draws at temperature 1 are never the same."""
    folder = tmp_path_factory.mktemp("model")
    save_random_model(folder, AutoTokenizer.from_pretrained(model_path))
    (folder / "generation_config.json").write_text(json.dumps({**DEFAULTS, "eos_token_id": 2}))
    with serve(folder / "log", "--model-id", str(folder)) as server:
        yield server


def output(server: Server, path: str, **more: Any) -> Any:  # noqa: ANN401 - JSON
    answer = ask(server, path, **ROUTES[path], **more)
    if path == CHAT:
        return answer["choices"][0]["message"]
    return answer["choices"][0]["text"] if path == COMPLETIONS else answer["output"][0]["content"]


@pytest.mark.parametrize("path", ROUTES)
def test_a_request_that_says_nothing_gets_the_model_s_way(server: Server, path: str) -> None:
    assert len({str(output(server, path)) for _ in range(3)}) == 1, "the most probable token each"
    assert output(server, path, top_p=1) == output(server, path, temperature=None)
    if path == "/v1/responses":
        assert ask(server, path, **ROUTES[path])["temperature"] == DEFAULTS["temperature"]
        return
    given = {"repetition_penalty": 1.0, "temperature": 0}
    assert output(server, path, **given) != output(server, path), "the penalty, too"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_request_outranks_the_model(server: Server, path: str) -> None:
    given = {"repetition_penalty": 1, "temperature": 1.5}
    drawn = {str(output(server, path, **given, top_k=50)) for _ in range(3)}
    assert len(drawn) == 3
    drawn = {str(output(server, path, **given, top_k=-1)) for _ in range(3)}
    assert len(drawn) == 3


def test_tgi_s_routes_are_as_ever(server: Server) -> None:
    given = {"max_new_tokens": 12, "repetition_penalty": 1.0}
    assert server.generate("Hi", max_new_tokens=12) == server.generate("Hi", **given)
    assert (
        len({server.generate("Hi", do_sample=True, **given)["generated_text"] for _ in range(3)})
        == 3
    )


def test_the_start_tells_it(server: Server) -> None:
    lines = [line for line in server.log.read_text().splitlines() if "generation_config" in line]
    assert len(lines) == 1
    assert lines[0].endswith("temperature 0.1, top_k 1, repetition_penalty 0.01")
