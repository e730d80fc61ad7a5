from __future__ import annotations

import time

import pytest

from tokenloom_engine.constraints.nesting import nesting


@pytest.mark.parametrize(
    ("text", "depth"),
    [
        ("", 0),
        ("3", 0),
        ("{}", 1),
        ("[][]", 1),
        ('[{"a":[1,{"b":[]}]},[]]', 5),
        (r'{"[[[": "{\"[\\"}', 1),
        ('"[[', 0),
        ('["\\', 1),
        ("]]]{", 0),
        ("[" * 10_000, 10_000),
        ('{"a":' * 10_000 + "{}" + "}" * 10_000, 10_001),
    ],
)
def test_how_deep(text: str, depth: int) -> None:
    assert nesting(text) == depth


@pytest.mark.parametrize("part", ["[", "]", '"', '\\"', '"a', '"\\', '{"a":"b"},'])
def test_a_megabyte_of_anything_takes_no_time(part: str) -> None:
    start = time.thread_time()
    nesting('"' + part * (1_000_000 // len(part)))
    nesting(part * (1_000_000 // len(part)))
    assert time.thread_time() - start < 1
