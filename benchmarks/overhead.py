"""What HTTP and the way between the processes add to the engine's step.

The same prompts run to their ends in an engine in this process and, all at once, on a server, in
turn. Compared are the steps in which all sequences decode: their time in the engine, and the time
between two events of a stream as the client sees it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from benchmarks.cpu_time import CpuTime
from benchmarks.dialects import GenerateStream
from benchmarks.load import Server
from benchmarks.machine import machine_figures
from benchmarks.own_server import own_server
from benchmarks.report import Report
from benchmarks.together import gaps_together
from benchmarks.workload import Request, Workload
from tokenloom_engine.config import EngineConfig
from tokenloom_engine.engine import Engine
from tokenloom_engine.messages import SamplingParams, StoppingParams, Submit
from tokenloom_server.bundled_model import bundled_model_path


def engine_steps(engine: Engine, requests: list[Request]) -> list[float]:
    """Seconds of the steps in which all the requests' sequences decode."""
    tokenizer = Tokenizer.from_file(engine.model.tokenizer_file)
    for number, request in enumerate(requests):
        engine.submit(
            Submit(
                id=number,
                prompt_ids=tokenizer.encode(request.prompt).ids,
                sampling=SamplingParams(),
                stopping=StoppingParams(max_new_tokens=request.max_tokens, ignore_eos=True),
            )
        )
    seconds = []
    while engine.has_work:
        start = time.perf_counter()
        stats = engine.step().stats
        if stats.prefill_sequences == 0 and stats.decode_sequences == len(requests):
            seconds.append(time.perf_counter() - start)
    return seconds


def main() -> int:
    """Print a line for each side of each round, then the medians; 1 if a request failed."""
    options = _arguments()
    report = Report(options.output)
    report.add({"measured": "machine", **machine_figures()})
    engine = Engine(
        EngineConfig(
            model_id=options.model_id or str(bundled_model_path()),
            quantize=options.quantize,
            speculate=0,
        )
    )
    flags = "--speculate 0"  # or a step would have several events
    flags += f" --model-id {options.model_id}" if options.model_id else ""
    flags += f" --quantize {options.quantize}" if options.quantize else ""
    alone: dict[int, list[float]] = {}
    served: dict[int, list[float]] = {}
    num_failures = 0
    with own_server(None, flags) as url:
        server, cpu = Server(url, GenerateStream()), CpuTime(url)
        workload = Workload(prompt_words=(100,), max_tokens=128, seed="warm-up")
        server.run(workload.requests(4, 4), 4)
        for number in range(options.rounds):
            for rows in options.rows:
                prompts = replace(workload, seed=f"{number}")
                requests = list(prompts.requests(rows, rows))
                alone.setdefault(rows, []).append(_median_ms(engine_steps(engine, requests)))
                with cpu.spent() as cpu_seconds:
                    level = server.run(requests, rows)
                num_failures += len(level.errors)
                served.setdefault(rows, []).append(_median_ms(gaps_together(level)))
                line: dict[str, Any] = {
                    "measured": "round",
                    "rows": rows,
                    "engine_step_ms": alone[rows][-1],
                    "served_gap_ms": served[rows][-1],
                    "errors": len(level.errors),
                }
                for part, seconds in cpu_seconds.items():
                    line[f"{part}_cpu_ms_per_token"] = round(
                        1000 * seconds / max(1, level.num_tokens), 3
                    )
                report.add(line)
    for rows in options.rows:
        shares = [100 * (b / a - 1) for a, b in zip(alone[rows], served[rows], strict=True)]
        report.add(
            {
                "measured": "overhead",
                "rows": rows,
                "rounds": options.rounds,
                "engine_step_ms": statistics.median(alone[rows]),
                "served_gap_ms": statistics.median(served[rows]),
                "added_percent": round(statistics.median(shares), 1),
                "added_percent_least": round(min(shares), 1),
                "added_percent_most": round(max(shares), 1),
            }
        )
    engine.close()
    return 1 if num_failures else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-id")
    parser.add_argument("--quantize", choices=["int8"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="keep the lines in this file, as a JSON array")
    return parser.parse_args()


def _median_ms(seconds: list[float]) -> float:
    return round(1000 * statistics.median(seconds), 2)


if __name__ == "__main__":
    sys.exit(main())
