"""A server in which two libraries compile grammars, over the real model."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import psutil
import pytest

from tests.integration.serving import Json, Server, client, events, generate, serve, token_ids

SCHEMA: Json = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Ann", "Bob"]},
        "colors": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
    },
    "required": ["name", "colors"],
    "additionalProperties": False,
}
REGEX = "My favourite (color|animal) is (red|green|the [a-z]{3,8})\\."
JSON = {"type": "json", "value": SCHEMA}
MATCH = {"type": "regex", "value": REGEX}


@pytest.fixture(scope="module")
def server(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("two-back-ends") / "log"
    flags = ("--model-id", str(model_path), "--dtype", "float32")
    with serve(log, *flags, "--constraint-backend", "json_schema=xgrammar") as server:
        yield server


async def test_both_in_one_batch(server: Server) -> None:
    async with client(server) as http:
        alone = [
            await generate(
                http, "Hello,", grammar=grammar, max_new_tokens=60, do_sample=True, seed=seed
            )
            for grammar in (JSON, MATCH)
            for seed in (1, 2)
        ]
        together = await asyncio.gather(
            *(
                generate(
                    http, "Hello,", grammar=grammar, max_new_tokens=60, do_sample=True, seed=seed
                )
                for grammar in (JSON, MATCH)
                for seed in (1, 2)
            )
        )
    for result in together[:2]:
        jsonschema.validate(json.loads(result["generated_text"]), SCHEMA)
    for result in together[2:]:
        assert re.fullmatch(REGEX, result["generated_text"])
        assert any(token.get("forced") for token in result["details"]["tokens"])
    for result in together:
        assert result["details"]["finish_reason"] == "eos_token"
    assert [token_ids(result) for result in together] == [token_ids(result) for result in alone]


async def test_streams(server: Server) -> None:
    async with client(server) as http:
        for grammar in (JSON, MATCH):
            whole = await generate(http, "Say it:", grammar=grammar, max_new_tokens=60)
            streamed = [
                event async for event in events(http, "Say it:", grammar=grammar, max_new_tokens=60)
            ]
            assert [event["token"]["id"] for event in streamed] == token_ids(whole)
            assert streamed[-1]["generated_text"] == whole["generated_text"]


async def test_forced_tokens_change_nothing_but_the_time(server: Server) -> None:
    async with client(server) as http:
        on, off = [
            await generate(
                http, "Hello,", grammar=MATCH, max_new_tokens=60, forced_tokens=forced_tokens
            )
            for forced_tokens in (True, False)
        ]
    assert token_ids(on) == token_ids(off)


async def test_each_refuses_in_its_own_words(server: Server) -> None:
    bad = ({"type": "json", "value": {"maxLength": 3}}, {"type": "regex", "value": "a("})
    async with client(server) as http:
        for grammar, reason in zip(
            bad, ("maxLength is not supported by xgrammar", "unclosed group"), strict=True
        ):
            for route in ("/generate", "/generate_stream"):
                response = await http.post(
                    route, json={"inputs": "Hello,", "parameters": {"grammar": grammar}}
                )
                assert response.status_code == 422
                assert reason in response.json()["error"]


def test_the_front_loads_neither_library_nor_pytorch(server: Server) -> None:
    maps = {Path(map.path).name for map in psutil.Process(server.process.pid).memory_maps()}
    assert [name for name in maps if name.startswith("libc")], "they can be told"
    assert not [name for name in maps if "torch" in name or "xgrammar" in name]
