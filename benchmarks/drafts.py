"""What drafts save, or cost: the same requests by an engine with them and one without, in turn.

Both run in this process and generate the same texts, for drafts change none. Prints a line for each
number of rows: how many times as long as without drafts it took with them, over the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import count
from typing import Any

import msgspec
from tokenizers import Tokenizer

from benchmarks.machine import machine_figures
from benchmarks.report import print_line
from benchmarks.schemas import PERSON
from benchmarks.workload import Request, Workload
from tokenloom_engine.config import EngineConfig
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.engine import Engine
from tokenloom_engine.messages import SamplingParams, StoppingParams, Submit
from tokenloom_server.bundled_model import bundled_model_path

KV_TOKENS = 32768


class Side:
    """One of the two engines."""

    def __init__(self, config: EngineConfig, temperature: float) -> None:
        """`temperature`: 0 is greedy."""
        self._engine = Engine(config)
        self._tokenizer = Tokenizer.from_file(self._engine.model.tokenizer_file)
        self._temperature = temperature
        self._ids = count()

    def run(self, requests: Sequence[Request]) -> tuple[float, int]:
        """Seconds and forwards that it takes for requests that come all at once."""
        for seed, request in enumerate(requests):
            self._engine.submit(self._submit(request, seed))
        start, num_forwards = time.perf_counter(), 0
        while self._engine.has_work or self._engine.is_compiling:
            step = self._engine.step()
            assert all(output.error is None and output.refusal is None for output in step.outputs)
            num_forwards += step.stats.batch_tokens > 0
        return time.perf_counter() - start, num_forwards

    def close(self) -> None:
        """Let the engine's threads end."""
        self._engine.close()

    def _submit(self, request: Request, seed: int) -> Submit:
        is_free = request.schema is None
        spec = None if is_free else ConstraintSpec("json_schema", json.dumps(request.schema))
        return Submit(
            id=next(self._ids),
            prompt_ids=self._tokenizer.encode(request.prompt).ids,
            sampling=SamplingParams(
                greedy=self._temperature == 0, temperature=self._temperature or 1.0, seed=seed
            ),
            stopping=StoppingParams(max_new_tokens=request.max_tokens, ignore_eos=is_free),
            constraint=spec,
        )


def main() -> int:
    """Print the machine, then a line for each number of rows."""
    options = _arguments()
    print_line({"measured": "machine", **machine_figures()})
    config = EngineConfig(
        model_id=options.model_id or str(bundled_model_path()),
        quantize=options.quantize,
        max_batch_total_tokens=KV_TOKENS,
    )
    sides = {
        "without": Side(msgspec.structs.replace(config, speculate=0), options.temperature),
        "with": Side(config, options.temperature),
    }
    for rows in options.rows:
        print_line(_compare(sides, rows, options))
    for side in sides.values():
        side.close()
    print_line({"measured": "machine", **machine_figures()})
    return 0


def _compare(sides: dict[str, Side], rows: int, options: argparse.Namespace) -> dict[str, Any]:
    seconds, forwards = defaultdict[str, list[float]](list), defaultdict[str, int](int)
    for number in range(-1, options.rounds):  # the first one does what is done once
        workload = Workload(
            prompt_words=(100,),
            max_tokens=128,
            seed=f"{options.seed}/{number}",
            schemas=(PERSON,) if options.constrained else (),
        )
        requests = list(workload.requests(rows, rows))
        for name in sides if number % 2 else reversed(sides):
            took, num_forwards = sides[name].run(requests)
            if number >= 0:
                seconds[name].append(took)
                forwards[name] += num_forwards
    pairs = zip(seconds["with"], seconds["without"], strict=True)
    return {
        "measured": "drafts",
        "rows": rows,
        "temperature": options.temperature,
        "constrained": options.constrained,
        "rounds": options.rounds,
        "forwards": dict(forwards),
        "seconds": {name: round(sum(of), 2) for name, of in seconds.items()},
        "times_without": _spread([with_them / without for with_them, without in pairs]),
    }


def _spread(ratios: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(ratios, n=4, method="inclusive")
    named = zip(("first_quartile", "median", "third_quartile"), cuts, strict=True)
    return {name: round(ratio, 3) for name, ratio in named}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-id", help="default the bundled model")
    parser.add_argument("--quantize", choices=["int8"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    parser.add_argument("--constrained", action="store_true", help="by a schema of five fields")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seed", default="0", help="of the prompts' words")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds must be 2 or more, for there are quartiles")
    if options.temperature < 0:
        parser.error("--temperature must be 0 or more")
    return options


if __name__ == "__main__":
    sys.exit(main())
