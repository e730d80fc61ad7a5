"""Batches over the scripted engine: which answer each line gets, and how a run goes on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.server.running import scripted_router
from tokenloom_router.metrics import Metrics
from tokenloom_router.router import Router
from tokenloom_server.app import create_app
from tokenloom_server.batch_line import Answer, BatchLine, LineError, answer_line, parse_line
from tokenloom_server.batch_output import BatchOutput, OutputError
from tokenloom_server.offline import Batch
from tokenloom_server.settings import Settings

Json = dict[str, Any]


def tgi(inputs: str, **parameters: object) -> str:
    return json.dumps({"inputs": inputs, "parameters": {"max_new_tokens": 3, **parameters}})


def openai(custom_id: str, **fields: object) -> str:
    body = {"model": "tgi", "prompt": "Hi", "max_tokens": 3}
    return json.dumps(
        {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body, **fields}
    )


class Runs:
    """Runs of `tokenloom generate` in one folder, but for the engine and the command line."""

    def __init__(self, folder: Path, tokenizer_file: Path) -> None:
        self.input = folder / "in.jsonl"
        self.output = folder / "out.jsonl"
        self._tokenizer_file = tokenizer_file

    def run(
        self,
        *lines: str,
        kills_engine: bool = False,
        **given: Any,  # noqa: ANN401 - settings
    ) -> list[Json]:
        """Answer these lines; returns the output's."""
        self.input.write_text("".join(f"{line}\n" for line in lines))
        settings = Settings(model_id="scripted", **given)
        metrics = Metrics()
        router = scripted_router(settings, metrics, self._tokenizer_file)
        app = create_app(settings, router, metrics)
        with BatchOutput.opened(self.output, self.input) as output:
            batch = Batch(app, self.input, output, settings.max_concurrent_requests)
            if not batch.is_done:
                asyncio.run(_run(batch, router if kills_engine else None))
            assert batch.is_done
            output.put_in_order()
            self.tally = batch.tally
        return [json.loads(line) for line in self.output.read_text().splitlines()]


async def _run(batch: Batch, victim: Router | None) -> None:
    """Run a batch. The engine of the victim is killed while it works."""
    task = asyncio.ensure_future(batch.run())
    while victim is not None and victim.num_open_requests == 0:
        await asyncio.sleep(0.01)
    if victim is not None and victim.engine_pids[0] is not None:
        os.kill(victim.engine_pids[0], signal.SIGKILL)
    await task


@pytest.fixture
def runs(tmp_path: Path, tokenizer_file: Path) -> Runs:
    return Runs(tmp_path, tokenizer_file)


def test_lines_are_answered_in_the_shape_that_they_have(runs: Runs) -> None:
    whole, detailed, error = runs.run(
        tgi("Hi"), tgi("Hi", details=True), tgi("Hi", max_new_tokens=0)
    )
    assert whole == {"line": 1, "generated_text": "(40)(73)(40)"}
    assert detailed["details"]["generated_tokens"] == 3
    assert error["line"] == 3 and error["error_type"] == "validation"
    assert "max_new_tokens" in error["error"]
    assert (runs.tally.lines, runs.tally.errors) == (3, 1)
    assert (runs.tally.prompt_tokens, runs.tally.generated_tokens) == (4, 6)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("not json", "the line is no request: JSON is malformed"),
        ("[1]", "the line is no request: Expected `object`"),
        ("\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), "the line is no request"),
        ("{}", "missing required field `custom_id`"),
        ('{"inputs":"Hi","stream":true}', "unknown field `stream`"),
        (openai("a", url="/v1/embeddings"), "`url` must be one of /v1/chat/completions"),
        (openai("a", method="GET"), "'GET'"),
        (openai("a", body=[]), "`body` must be an object"),
        (openai("a", body={"prompt": "Hi", "stream": True}), "`body.stream` cannot be true"),
        ("[" * 5000, "the line is no request"),
    ],
)
def test_what_is_no_request_is_an_error_line(runs: Runs, line: str, reason: str) -> None:
    with pytest.raises(LineError) as caught:
        parse_line(1, line.encode("latin-1"))
    assert reason in str(caught.value)


def test_a_wrong_line_does_not_stop_the_others(runs: Runs) -> None:
    lines = runs.run(tgi("a"), "nonsense", "", openai("x", url="/no"), tgi("b"))
    assert [line["line"] for line in lines] == [1, 2, 4, 5]
    assert lines[0]["generated_text"] and lines[3]["generated_text"]
    assert lines[1]["custom_id"] is None and lines[2]["custom_id"] == "x"
    for line in lines[1:3]:
        assert line["response"] is None and line["error"]["code"] == "invalid_line"


def test_a_custom_id_names_one_line(runs: Runs) -> None:
    first, second = runs.run(openai("x", url="/no"), openai("x", url="/no"))
    assert "url" in first["error"]["message"]
    third, fourth = parse_line(1, openai("x").encode()), parse_line(2, openai("y").encode())
    assert (third.custom_id, fourth.custom_id) == ("x", "y")
    assert second["custom_id"] == "x"


def test_a_run_goes_on_where_it_was(runs: Runs) -> None:
    """Also behind a line that was not written to its end."""
    requests = [tgi(letter) for letter in "abcdef"]
    done = {"line": 4, "generated_text": "from an earlier run"}
    runs.output.write_text(f'{json.dumps(done)}\n{{"line": 2, "generated_te')
    lines = runs.run(*requests)
    assert [line["line"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert lines[3] == done, "it is not generated again"
    assert runs.tally.lines == 5
    before = runs.output.read_bytes()
    runs.run(*requests)
    assert runs.tally.lines == 0 and runs.output.read_bytes() == before


def test_an_output_of_something_else_is_left_alone(runs: Runs) -> None:
    runs.output.write_text("my diary\n")
    with pytest.raises(OutputError, match="not a batch's output"):
        runs.run(tgi("a"))
    assert runs.output.read_text() == "my diary\n"
    runs.output.write_text('{"line": 1, "custom_id": "other"}\n')
    with pytest.raises(OutputError, match="line 1 of another input"):
        runs.run(openai("x"))
    with (
        pytest.raises(OutputError, match="cannot be the input"),
        BatchOutput.opened(runs.input, runs.input),
    ):
        pass


def test_more_lines_than_permits_all_get_their_turn(runs: Runs) -> None:
    lines = runs.run(*[tgi(f"{i}") for i in range(40)], max_concurrent_requests=3)
    assert all("generated_text" in line for line in lines) and len(lines) == 40


def test_lines_outlive_the_engine(runs: Runs) -> None:
    """What was under way when it died is sent again to the next one."""
    lines = runs.run(*[tgi(f"{i}", max_new_tokens=400) for i in range(12)], kills_engine=True)
    assert all("generated_text" in line for line in lines), lines
    assert runs.tally.errors == 0


def test_what_a_route_answers_is_kept_as_it_is() -> None:
    line = BatchLine(number=7, custom_id="x", url="/v1/completions", body=b"{}")
    usage = b'{"usage":{"prompt_tokens":3,"completion_tokens":2},"x":1.0}'
    good = Answer(status=200, body=usage, headers={"x-request-id": "r"})
    assert (good.prompt_tokens, good.generated_tokens) == (3, 2)
    said = json.loads(answer_line(line, good))
    assert said["id"].startswith("batch_req_") and said["error"] is None
    assert said["response"] == {"status_code": 200, "request_id": "r", "body": json.loads(usage)}
    bad = Answer(status=400, body=b'{"error":{"message":"no `x`","code":"c"}}', headers={})
    said = json.loads(answer_line(line, bad))
    assert said["response"]["status_code"] == 400
    assert said["error"] == {"code": "400", "message": "no `x`"}
    plain = Answer(status=413, body=b"too large", headers={})
    assert json.loads(answer_line(line, plain))["error"]["message"] == "too large"
