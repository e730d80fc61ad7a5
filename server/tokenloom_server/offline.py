"""`tokenloom generate`: a file of requests through the engine, without a port.

The requests go to the routes that the server has, inside of this process: so they are validated as
the server's are, and answered as it would.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import httpx
from fastapi import FastAPI
from tqdm import tqdm

from tokenloom_engine.config import EngineConfig
from tokenloom_engine.logs import configure_logging
from tokenloom_router.config import RouterConfig
from tokenloom_router.errors import EngineStartError
from tokenloom_router.metrics import Metrics
from tokenloom_router.router import Router
from tokenloom_server.app import create_app
from tokenloom_server.batch_line import (
    Answer,
    BatchLine,
    LineError,
    answer_line,
    custom_id_of,
    error_line,
    parse_line,
)
from tokenloom_server.batch_output import BatchOutput, OutputError
from tokenloom_server.settings import Settings

BUSY = frozenset({429, 503})
"""No permit is free, or the engine is being restarted: the request is sent again."""
FAILED = frozenset({424, 500})
"""The engine failed, perhaps for the sake of another request in the batch."""
MAX_FAILURES = 3
MAX_BUSY_SECONDS = 120.0
PAUSE_SECONDS = 0.25
TERMINAL_SECONDS, LOG_SECONDS = 0.2, 10.0
"""How often the progress is shown."""
INTERRUPTED = 130
"""The exit status."""
HEADERS = {"content-type": "application/json"}
BOM = b"\xef\xbb\xbf"

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Tally:
    """What a run has done."""

    started_at: float = field(default_factory=time.monotonic)
    lines: int = 0
    errors: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0

    def add(self, answer: Answer) -> None:
        """Count an answer."""
        self.errors += not answer.is_good
        self.prompt_tokens += answer.prompt_tokens
        self.generated_tokens += answer.generated_tokens

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens."""
        return self.generated_tokens / max(1e-9, time.monotonic() - self.started_at)

    def __str__(self) -> str:
        seconds = time.monotonic() - self.started_at
        return (
            f"{self.lines} lines in {seconds:.1f} s, {self.errors} of them errors; "
            f"{self.prompt_tokens} prompt tokens, {self.generated_tokens} generated tokens, "
            f"{self.tokens_per_second:.1f} tokens/s"
        )


class Batch:
    """The requests of one input, their answers, and where they meet."""

    def __init__(self, app: FastAPI, input: Path, output: BatchOutput, concurrency: int) -> None:
        """Read the input through once. Raises OutputError if the output is not this input's."""
        self._app = app
        self._input = input
        self._output = output
        self._concurrency = concurrency
        self._doubles: set[int] = set()
        """Lines whose `custom_id` an earlier line has."""
        self.num_lines = self._survey()
        self.tally = Tally()

    @property
    def is_done(self) -> bool:
        """Whether all lines have their answers."""
        return len(self._output.done) == self.num_lines

    async def run(self) -> None:
        """Answer what is not answered yet."""
        numbered = self._pending()
        is_terminal = sys.stderr.isatty()
        transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
        async with (
            self._app.router.lifespan_context(self._app),
            httpx.AsyncClient(transport=transport, base_url="http://batch", timeout=None) as http,
        ):
            self.tally = Tally()  # loading the model does not count
            with tqdm(
                total=self.num_lines,
                initial=len(self._output.done),
                unit="line",
                mininterval=TERMINAL_SECONDS if is_terminal else LOG_SECONDS,
                dynamic_ncols=is_terminal,
            ) as bar:
                async with asyncio.TaskGroup() as workers:
                    for _ in range(min(self._concurrency, self.num_lines)):
                        workers.create_task(self._work(http, numbered, bar))

    async def _work(
        self, http: httpx.AsyncClient, numbered: Iterator[tuple[int, bytes]], bar: tqdm[NoReturn]
    ) -> None:
        for number, text in numbered:
            custom_id = custom_id_of(text)
            try:
                line = self._parse(number, text)
                answer = await _answer(http, line)
                self.tally.add(answer)
                result = answer_line(line, answer)
            except LineError as error:
                self.tally.errors += 1
                result = error_line(number, str(error), custom_id=custom_id)
            self.tally.lines += 1
            self._output.add(number, custom_id, result)
            bar.set_postfix_str(f"{self.tally.tokens_per_second:.1f} tokens/s", refresh=False)
            bar.update()

    def _parse(self, number: int, text: bytes) -> BatchLine:
        line = parse_line(number, text)
        if number in self._doubles:
            raise LineError(f"`custom_id` {line.custom_id} is that of an earlier line, too")
        return line

    def _survey(self) -> int:
        num_lines = 0
        seen: set[str] = set()
        for number, text in _numbered(self._input):
            num_lines += 1
            custom_id = custom_id_of(text)
            if number in self._output.done and self._output.done[number] != custom_id:
                raise OutputError(
                    f"the output has an answer to line {number} of another input; name another file"
                )
            if custom_id in seen:
                self._doubles.add(number)
            elif custom_id is not None:
                seen.add(custom_id)
        return num_lines

    def _pending(self) -> Iterator[tuple[int, bytes]]:
        return (line for line in _numbered(self._input) if line[0] not in self._output.done)


def generate(
    settings: Settings,
    engine: EngineConfig,
    router_config: RouterConfig,
    *,
    input: Path,
    output: Path,
) -> int:
    """Answer a file's requests. Returns the exit status."""
    configure_logging(json_output=settings.json_output, level=settings.log_level)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    metrics = Metrics()
    router = Router(router_config, engine, metrics)
    # The routes are reached by this process alone, and an output file has no headers.
    settings = settings.model_copy(update={"api_key": None, "strict_fields": True})
    app = create_app(settings, router, metrics)
    try:
        with BatchOutput.opened(output, input) as batch_output:
            batch = Batch(app, input, batch_output, settings.max_concurrent_requests)
            num_done, num_lines = len(batch_output.done), batch.num_lines
            if num_done:
                logger.info("%d of %d lines have their answers already", num_done, num_lines)
            if not batch.is_done:
                logger.info("Loading %s", engine.model_id)
                asyncio.run(_run_until_signal(batch))
                logger.info("%s", batch.tally)
            if not batch.is_done:
                logger.warning("Interrupted: the same command goes on from here")
                return INTERRUPTED
            batch_output.put_in_order()
    except (OutputError, EngineStartError) as error:
        logger.error("%s", error)
        return 1
    return 0


async def _run_until_signal(batch: Batch) -> None:
    task = asyncio.ensure_future(batch.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    with suppress(asyncio.CancelledError):
        await task


async def _answer(http: httpx.AsyncClient, line: BatchLine) -> Answer:
    """Send a request, again where that it failed is not its own fault."""
    failures = 0
    started_at = time.monotonic()
    while True:
        response = await http.post(line.url, content=line.body, headers=HEADERS)
        failures += response.status_code in FAILED
        waited = time.monotonic() - started_at
        if (response.status_code in BUSY and waited < MAX_BUSY_SECONDS) or (
            response.status_code in FAILED and failures < MAX_FAILURES
        ):
            await asyncio.sleep(PAUSE_SECONDS)
            continue
        return Answer(
            status=response.status_code,
            body=response.content,
            headers=response.headers,
        )


def _numbered(input: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers from 1."""
    try:
        with input.open("rb") as stream:
            for number, text in enumerate(stream, 1):
                if text := text.removeprefix(BOM).strip():
                    yield number, text
    except OSError as error:
        raise OutputError(f"cannot read {input}: {error.strerror}") from error
