"""The start line has the CPU's level and speed; a warning follows where int8 is slower."""

from __future__ import annotations

import logging
import re

import pytest

from tests.engine.conftest import MakeEngine
from tokenloom_engine import speed_log

SPEED = re.compile(
    r"CPU level (?P<level>\w+): (?P<weights>\w+) weights, "
    r"multiplied in (?P<arithmetic>\w+)(?P<way> [^;]+)?; "
    r"measured [\d.]+ GB/s, \d+ GFLOP/s; expect up to \d+ tokens/s for 1 sequence, \d+ for 64"
)


@pytest.mark.parametrize("quantize", [None, "int8"])
def test_a_start_tells_level_arithmetic_and_speed_once(
    make_engine: MakeEngine,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    quantize: str | None,
) -> None:
    # The clock is the machine's; that a comparison of two speeds is told does not depend on it.
    monkeypatch.setattr(speed_log, "slower_rows", lambda *_: {8: 2.04})
    with caplog.at_level(logging.INFO):
        engine = make_engine(dtype="bfloat16", quantize=quantize)
    if engine._runner.kernels is None:
        pytest.skip("there is no C++ compiler")
    lines = [match for record in caplog.messages if (match := SPEED.fullmatch(record))]
    assert len(lines) == 1
    level = engine._runner.kernels.level
    assert lines[0]["level"] == level.name
    assert lines[0]["weights"] == (quantize or "bfloat16")
    arithmetic = "bfloat16" if level.name in ("avx512_bf16", "neon_bf16") else "float32"
    if quantize is not None:
        has_bytes = any(part in level.name for part in ("vnni", "bf16", "dot"))
        arithmetic = "int8" if has_bytes else "int16"
    assert lines[0]["arithmetic"] == arithmetic
    assert (lines[0]["way"] is not None) == level.has_tiles()
    warned = [text for text in caplog.messages if "2.0 times as long for 8 sequences" in text]
    assert len(warned) == (0 if quantize is None else 1)
