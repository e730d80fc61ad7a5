"""`tokenloom generate` as a process of its own: what is answered, and how it goes on."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.serving import Json

NUM_LINES = 14
LONG = 24
"""Tokens of the lines that keep the run busy."""
COMMAND = (sys.executable, "-m", "tokenloom_server.cli", "generate")


class Run:
    """A folder with an input and what comes of it."""

    def __init__(self, folder: Path, model_path: Path) -> None:
        self.input = folder / "in.jsonl"
        self.output = folder / "out.jsonl"
        self._command = [*COMMAND, "--input", str(self.input), "--output", str(self.output)]
        self._command += ["--model-id", str(model_path), "--dtype", "float32"]
        self._command += ["--max-concurrent-requests", "2"]

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)

    def interrupt(self, number: signal.Signals, *, at_least: int) -> tuple[int, str]:
        """Start, and send a signal when so many lines are there; returns status and log."""
        process = self.start()
        while self.num_answered() < at_least:
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.01)
        process.send_signal(number)
        log = process.communicate(timeout=60)[1]
        return process.returncode, log

    def lines(self) -> list[Json]:
        return [json.loads(line) for line in self.output.read_text().splitlines()]

    def num_answered(self) -> int:
        return self.output.read_bytes().count(b"\n") if self.output.exists() else 0


@pytest.fixture
def run(tmp_path: Path, model_path: Path) -> Run:
    return Run(tmp_path, model_path)


def line(number: int) -> Json:
    """Each shape in turn; all are constrained, so that it is known what is right."""
    regex = {"regex": f"{number}(ab)*"}
    common: Json = {"model": "tgi", "structured_outputs": regex, "temperature": 0}
    bodies: list[tuple[str, Json]] = [
        (
            "/v1/chat/completions",
            {**common, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": LONG},
        ),
        ("/v1/completions", {**common, "prompt": "Hi", "max_tokens": LONG}),
    ]
    if number % 3 == 2:
        grammar = {"type": "regex", "value": f"{number}(ab)*"}
        return {"inputs": "Hi", "parameters": {"max_new_tokens": LONG, "grammar": grammar}}
    url, body = bodies[number % 3]
    return {"custom_id": f"request {number}", "method": "POST", "url": url, "body": body}


def text(answer: Json) -> str:
    """What was generated."""
    if "generated_text" in answer:
        whole: str = answer["generated_text"]
        return whole
    assert answer["response"]["status_code"] == 200 and answer["error"] is None, answer
    choice: Any = answer["response"]["body"]["choices"][0]
    found: str = choice["text"] if "text" in choice else choice["message"]["content"]
    return found


def test_a_run_that_was_interrupted_goes_on(run: Run) -> None:
    """Twice: it is killed, with a line half written, and stopped."""
    requests = [json.dumps(line(i)) for i in range(NUM_LINES)]
    requests[5] = "no request"
    run.input.write_text("\n".join(requests))
    run.interrupt(signal.SIGKILL, at_least=3)
    killed = run.lines()
    with run.output.open("ab") as stream:
        stream.write(b'{"line": 13, "generated_te')
    status, log = run.interrupt(signal.SIGINT, at_least=len(killed) + 3)
    assert status == 130 and "the same command goes on" in log
    stopped = run.lines()
    assert len(killed) < len(stopped) < NUM_LINES

    process = run.start()
    log = process.communicate(timeout=120)[1]
    assert process.returncode == 0, log
    after = run.lines()
    assert [answer["line"] for answer in after] == list(range(1, NUM_LINES + 1))
    assert all(answer in after for answer in (*killed, *stopped)), "nothing is done again"
    for i, answer in enumerate(after):
        if i == 5:
            assert answer["error"]["code"] == "invalid_line"
            continue
        assert text(answer).startswith(str(i))
        assert answer.get("custom_id", f"request {i}") == f"request {i}"
    done = re.search(r"(\d+) lines in .* ([\d.]+) tokens/s", log)
    assert done is not None and int(done[1]) == NUM_LINES - len(stopped) and float(done[2]) > 0
    assert f"{NUM_LINES}/{NUM_LINES}" in log, "the progress is shown"


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ([], "the following arguments are required: --input, --output"),
        (["--input", "none.jsonl", "--output", "out.jsonl"], "cannot read none.jsonl"),
        (["--input", "in.jsonl", "--output", "in.jsonl"], "the output cannot be the input"),
        (["--input", "in.jsonl", "--output", "no/out.jsonl"], "cannot write no/out.jsonl"),
        (["--input", "in.jsonl", "--output", "out.jsonl", "--port", "1"], "--port"),
    ],
)
def test_what_cannot_be_run_is_said(tmp_path: Path, flags: list[str], reason: str) -> None:
    (tmp_path / "in.jsonl").write_text("{}\n")
    ran = subprocess.run(
        [*COMMAND, *flags], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode in (1, 2) and reason in ran.stderr
    assert not (tmp_path / "none.jsonl").exists()
