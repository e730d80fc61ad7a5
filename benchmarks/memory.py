"""Memory of a server's processes over many requests of mixed kinds.

Keeps a number of requests in flight until all have ended, and prints a line with the memory of each
process after every `--every` requests, once the server is idle. The last line has the growth over
the second half of the run: caches have filled up by then, so it is what the requests leave behind.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp

from benchmarks.own_server import own_server
from benchmarks.process_memory import ProcessMemory
from benchmarks.report import Report
from benchmarks.schemas import MIXED, record, text, whole
from benchmarks.server_metrics import read_metrics
from benchmarks.workload import WORDS

THINGS = WORDS.split()
IDLE_METRICS = ("tgi_queue_size", "tgi_batch_current_size")
MODEL = "tgi"


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request."""

    kind: str
    path: str
    body: dict[str, Any]
    aborts: bool = False
    """Whether the client leaves after the first bytes."""


class MixedRequests:
    """Requests of all kinds in turn; the same seed gives the same ones."""

    def __init__(self, seed: str, max_tokens: int) -> None:
        self._draw = random.Random(seed)
        self._max_tokens = max_tokens

    def __iter__(self) -> Iterator[Call]:
        """Yield calls without end."""
        for number in itertools.count():
            yield from self._round(number)

    def _round(self, number: int) -> Iterator[Call]:
        """One call of each kind."""
        yield self._generate("free", ignore_eos=True)
        yield self._generate("sampled", temperature=0.8, top_p=0.9, top_k=50, seed=number)
        yield self._generate("penalties", repetition_penalty=1.2, frequency_penalty=0.5)
        yield self._generate("stream", path="/generate_stream")
        yield self._generate("aborted", path="/generate_stream", max_new_tokens=400)
        yield self._generate("details", details=True, decoder_input_details=True, top_n_tokens=5)
        yield self._generate("best_of", best_of=2, do_sample=True)
        yield self._generate("few schemas", grammar=_json(MIXED[number % len(MIXED)]))
        yield self._generate("many schemas", grammar=_json(self._new_schema(number)))
        yield self._generate("large schemas", grammar=_json(self._large_schema(number)))
        pattern = f"{number % 1000}[a-z]{{1,{8 + number % 40}}} (yes|no)"
        yield self._generate("regex", grammar={"type": "regex", "value": pattern})
        choices = [f"{word} {number}" for word in THINGS[:12]]
        yield self._generate("choice", grammar={"type": "choice", "value": choices})
        yield self._generate("invalid", grammar={"type": "regex", "value": f"({number}"})
        yield self._chat("chat")
        yield self._chat("tools", tools=[_tool(number), _tool(number % 7 - 7)], tool_choice="auto")
        yield self._chat("tool stream", tools=[_tool(number)], stream=True)

    def _generate(self, kind: str, path: str = "/generate", **parameters: Any) -> Call:  # noqa: ANN401
        parameters.setdefault("max_new_tokens", self._max_tokens)
        body = {"inputs": self._prompt(), "parameters": parameters}
        return Call(kind, path, body, aborts=kind == "aborted")

    def _chat(self, kind: str, **fields: Any) -> Call:  # noqa: ANN401 - JSON
        messages = [{"role": "user", "content": self._prompt()}]
        body = {"model": MODEL, "messages": messages, "max_tokens": self._max_tokens, **fields}
        return Call(kind, "/v1/chat/completions", body)

    def _prompt(self) -> str:
        return " ".join(self._draw.choices(THINGS, k=self._draw.choice((4, 16, 48))))

    def _new_schema(self, number: int) -> dict[str, Any]:
        names = self._draw.sample(THINGS, 4)
        return record(**{f"{name}_{number}": text(8) for name in names}, count=whole(0, number))

    def _large_schema(self, number: int) -> dict[str, Any]:
        fields = {f"{name}_{number % 97}_{i}": text(8) for name in THINGS[:20] for i in range(3)}
        return {**record(**fields), "required": list(fields)[:2]}


class MemoryRun:
    """Sends calls to a server, and reads its memory between them."""

    def __init__(self, url: str, report: Report) -> None:
        self._url = url
        self._report = report
        self._memory = ProcessMemory(url)
        self._statuses: Counter[str] = Counter()

    async def run(self, calls: Iterator[Call], total: int, every: int, concurrency: int) -> None:
        """Send `total` calls; add a line to the report for each `every` of them."""
        for done in range(0, total, every):
            await self._send_all(itertools.islice(calls, every), concurrency)
            await self._wait_until_idle()
            self._report.add(
                {
                    "requests": done + every,
                    "statuses": dict(sorted(self._statuses.items())),
                    "mib": self._memory.read(),
                }
            )

    async def _send_all(self, calls: Iterator[Call], concurrency: int) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def client() -> None:
                for call in calls:
                    self._statuses[f"{call.kind} {await self._send(session, call)}"] += 1

            await asyncio.gather(*(client() for _ in range(concurrency)))

    async def _send(self, session: aiohttp.ClientSession, call: Call) -> str:
        async with session.post(f"{self._url}{call.path}", json=call.body) as response:
            if call.aborts:
                await response.content.readany()
                response.close()
            else:
                await response.read()
        return str(response.status)

    async def _wait_until_idle(self) -> None:
        while any(read_metrics(self._url)[name] for name in IDLE_METRICS):
            await asyncio.sleep(0.05)


def growth(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Growth of each process over the second half of the lines, in MiB per 1,000 requests."""
    half = lines[len(lines) // 2 :]
    thousands = (half[-1]["requests"] - half[0]["requests"]) / 1000
    first, last = half[0]["mib"], half[-1]["mib"]
    return {
        "from_requests": half[0]["requests"],
        "to_requests": half[-1]["requests"],
        "mib_per_1000_requests": {
            name: round((last[name]["rss"] - first[name]["rss"]) / thousands, 3)
            for name in last
            if name in first and thousands
        },
    }


def save_tiny_model(folder: Path) -> None:
    """Save a small Llama with random weights and the bundled model's tokenizer and template."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from tokenloom_engine.checkpoint import resolve_checkpoint
    from tokenloom_server.bundled_model import bundled_model_path

    bundled = resolve_checkpoint(bundled_model_path(), None, torch.bfloat16).path
    tokenizer = AutoTokenizer.from_pretrained(bundled)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=2048,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json", "value": schema}


def _tool(number: int) -> dict[str, Any]:
    parameters = record(place=text(8), days=whole(1, 7))
    return {
        "type": "function",
        "function": {"name": f"tool_{number}".replace("-", "m"), "parameters": parameters},
    }


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a server that this process started; else one is started")
    parser.add_argument("--server-args", default="")
    parser.add_argument("--tiny", action="store_true", help="serve a tiny random model")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--every", type=int, default=1000)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=12)
    parser.add_argument("--kinds", nargs="+", help="only those whose names have one of these words")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    report = Report(options.output)
    flags = options.server_args
    with ExitStack() as stack:
        if options.tiny:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            save_tiny_model(folder)
            flags += f" --model-id {folder} --dtype float32"
        url = stack.enter_context(own_server(options.url, flags))
        run = MemoryRun(url, report)
        calls = iter(MixedRequests("memory", options.max_tokens))
        if options.kinds:
            calls = (c for c in calls if any(word in c.kind for word in options.kinds))
        asyncio.run(run.run(calls, options.requests, options.every, options.concurrency))
    report.add(growth(report.lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
