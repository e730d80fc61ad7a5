"""Logits processors of an installed package: the example, as its README has it installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.serving import Json, Server, body, client, events, generate, serve

EXAMPLE = Path(__file__).parents[2] / "examples" / "logits_processor"
NAMES = ["banned_phrases", "min_p", "no_repeat_ngram"]
PROMPT = "I live in New York. I live in New York. I live in New York. I live in"
NO_YORK: Json = {"name": "banned_phrases", "args": {"phrases": ["New York", "New Jersey"]}}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example in it, built and installed."""
    folder = tmp_path_factory.mktemp("packages")
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        *offline,
        "--target",
        str(folder),
        str(EXAMPLE),
    ]
    done = subprocess.run(install, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def server(
    packages: Path, model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server that has the example."""
    log = tmp_path_factory.mktemp("server") / "log"
    module_path = os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")])
    flags = ["--model-id", str(model_path), "--dtype", "float32"]
    with serve(log, *flags, PYTHONPATH=module_path) as server:
        yield server


def test_info_lists_them(server: Server) -> None:
    assert httpx.get(f"{server.url}/info", timeout=10).json()["logits_processors"] == NAMES


@pytest.mark.anyio
async def test_phrases_are_banned_and_neighbours_do_not_notice(server: Server) -> None:
    def banned(text: str) -> list[str]:
        return [phrase for phrase in NO_YORK["args"]["phrases"] if phrase in text]

    drawn: Json = {"do_sample": True, "best_of": 2, "max_new_tokens": 16}
    async with client(server) as http:
        free = await generate(http, PROMPT, max_new_tokens=12)
        assert banned(free["generated_text"]), "it says so, if it may"
        held = await generate(http, PROMPT, max_new_tokens=16, logits_processors=[NO_YORK])
        assert not banned(held["generated_text"])
        streamed = [
            event
            async for event in events(http, PROMPT, max_new_tokens=16, logits_processors=[NO_YORK])
        ]
        assert [event["token"]["id"] for event in streamed] == [
            token["id"] for token in held["details"]["tokens"]
        ]
        assert streamed[-1]["generated_text"] == held["generated_text"]
        # Each sibling has a text, and so a state, of its own.
        best = await generate(http, PROMPT, logits_processors=[NO_YORK], **drawn)
        siblings = best["details"]["best_of_sequences"]
        texts = [best["generated_text"], *(sibling["generated_text"] for sibling in siblings)]
        assert len(set(texts)) == 2
        assert not any(map(banned, texts))


def test_with_a_grammar(server: Server) -> None:
    def text(pattern: str, processors: list[Json]) -> str:
        response = server.generate(
            PROMPT, logits_processors=processors, grammar={"type": "regex", "value": pattern}
        )
        found: str = response["generated_text"]
        return found

    two_words = " [A-Z][a-z]{2,8} [A-Z][a-z]{2,8}"
    assert text(two_words, []).startswith(" New York")
    other = text(two_words, [NO_YORK])
    assert re.fullmatch(two_words, other) and "New York" not in other
    assert text(" New York[.]", [NO_YORK]) == " New York.", "the grammar outranks it"


def test_classes_of_transformers(server: Server) -> None:
    no_repeat = {"name": "no_repeat_ngram", "args": {"ngram_size": 2}}
    certain = {"name": "min_p", "args": {"min_p": 1.0}}
    one = server.generate(PROMPT, max_new_tokens=12, logits_processors=[no_repeat])
    both = server.generate(
        PROMPT, max_new_tokens=12, logits_processors=[no_repeat, certain], do_sample=True
    )
    assert one == both, "none but the best is left to draw"
    assert "New York" not in one["generated_text"]


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
@pytest.mark.parametrize(
    ("processors", "reason"),
    [
        (
            [{"name": "absent"}],
            "`logits_processors` must have names of installed logits processors: "
            f"{', '.join(NAMES)}. Given: absent",
        ),
        ([NO_YORK] * 9, "`logits_processors` supports up to 8 logits processors. Given: 9"),
        (
            [{"name": "banned_phrases", "args": {"phrases": []}}],
            "`logits_processors`: banned_phrases: `phrases` must be a list of 1 to 8 strings",
        ),
        (
            [NO_YORK, {"name": "no_repeat_ngram", "args": {"ngram_size": -1}}],
            "`logits_processors`: no_repeat_ngram: `ngram_size` has to be a strictly positive",
        ),
        (
            [{"name": "min_p", "args": {"min_p": 2**64}}],
            "`logits_processors`: min_p: integers must have at most 64 bits",
        ),
        (
            [{"name": "banned_phrases", "args": {"phrases": ["\ud83d"]}}],
            "`logits_processors`: banned_phrases: not valid Unicode text",
        ),
    ],
)
def test_a_request_at_fault(server: Server, path: str, processors: list[Any], reason: str) -> None:
    response = httpx.post(
        server.url + path,
        content=json.dumps(body(PROMPT, {"logits_processors": processors})),
        headers={"content-type": "application/json"},
        timeout=30,
    )
    assert response.status_code == 422
    assert response.json()["error"].startswith(f"Input validation error: {reason}")
    assert response.json()["error_type"] == "validation"
