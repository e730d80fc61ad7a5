"""Hashes of prompts' prefixes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tokenloom_ray.prompt_prefix import BLOCK_BYTES, MAX_BLOCKS, prefix_hashes

SYSTEM = {"role": "system", "content": "You answer briefly. " * 50}
TURN = {"role": "user", "content": "And what of the second question? " * 20}


def hashes(**body: Any) -> tuple[bytes, ...]:  # noqa: ANN401 - JSON
    return prefix_hashes(json.dumps(body).encode())


@pytest.mark.parametrize("field", ["inputs", "prompt", "input", "instructions"])
def test_prompts_share_the_hashes_of_their_common_prefix(field: str) -> None:
    common = "x" * 4 * BLOCK_BYTES
    first, second = hashes(**{field: common + "a" * 600}), hashes(**{field: common + "b" * 600})
    assert first[:4] == second[:4]
    assert not set(first[4:]) & set(second[4:])
    assert len(first) == len(set(first)) == (4 * BLOCK_BYTES + 602) // BLOCK_BYTES


def test_the_next_turn_of_a_chat_continues_the_hashes() -> None:
    first = hashes(messages=[SYSTEM, TURN])
    second = hashes(messages=[SYSTEM, TURN, {"role": "assistant", "content": "y" * 999}, TURN])
    assert len(first) > 4 and second[: len(first)] == first


def test_other_fields_do_not_matter() -> None:
    plain = hashes(messages=[SYSTEM])
    assert plain == hashes(model="m", temperature=0.3, seed=7, messages=[SYSTEM], stream=True)
    assert plain != hashes(tools=[{"type": "function"}], messages=[SYSTEM])


@pytest.mark.parametrize(
    "body",
    [b"", b"x" * 999, b"[" * 99_999, b'{"inputs":' * 9_999, b"[1]", b'{"inputs": "short"}', b"{}"],
)
def test_what_has_no_prefix_has_no_hashes(body: bytes) -> None:
    assert prefix_hashes(body) == ()


def test_the_number_of_hashes_is_bounded() -> None:
    assert len(hashes(inputs="x" * 1_000_000)) == MAX_BLOCKS
