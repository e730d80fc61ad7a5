"""The engine's step, without server and clients, against what the machine could do at best."""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from benchmarks.machine import machine_figures
from benchmarks.report import print_line
from tokenloom_engine.config import EngineConfig
from tokenloom_engine.engine import Engine
from tokenloom_engine.messages import SamplingParams, StoppingParams, Submit
from tokenloom_server.bundled_model import bundled_model_path

LONGEST = 1000
"""New tokens of a sequence at most: those of the steps, and of other sequences' prefill."""
WARM_UP = 3
"""Decode steps that are not measured."""


@dataclass
class Bench:
    """Measures steps of one engine."""

    engine: Engine
    steps: int
    machine: dict[str, Any]
    is_quantized: bool
    random: random.Random = field(default_factory=lambda: random.Random(0))
    _next_id: int = 0

    def decode(self, rows: int, context: int) -> dict[str, Any]:
        """Steps in which each of `rows` sequences of about `context` tokens gets one more."""
        ids = [self._submit(context) for _ in range(rows)]
        prefill_seconds = self._prefill(rows)
        seconds, forward = [], []
        for step in range(WARM_UP + self.steps):
            start = time.perf_counter()
            outputs = self.engine.step()
            if step >= WARM_UP:
                seconds.append(time.perf_counter() - start)
                forward.append(outputs.stats.forward_seconds)
        for id in ids:
            self.engine.abort(id)
        best = self._limit_seconds(rows, rows * context)
        median = statistics.median(seconds)
        return {
            "measured": "decode",
            "rows": rows,
            "context": context,
            "step_ms": _ms(median),
            "step_min_ms": _ms(min(seconds)),
            "step_max_ms": _ms(max(seconds)),
            "forward_ms": _ms(statistics.median(forward)),
            "tokens_per_second": round(rows / median, 1),
            "limit_ms": _ms(best),
            "times_limit": round(median / best, 2),
            "prefill_tokens_per_second": round(rows * context / prefill_seconds, 1),
        }

    def _submit(self, prompt_tokens: int) -> int:
        self._next_id += 1
        width = self.engine.vocabulary.size
        self.engine.submit(
            Submit(
                id=self._next_id,
                prompt_ids=[self.random.randrange(width) for _ in range(prompt_tokens)],
                sampling=SamplingParams(),
                stopping=StoppingParams(max_new_tokens=LONGEST, ignore_eos=True),
            )
        )
        return self._next_id

    def _prefill(self, rows: int) -> float:
        """Run until all sequences decode. Returns the seconds."""
        start = time.perf_counter()
        while True:
            stats = self.engine.step().stats
            if stats.prefill_sequences == 0 and stats.decode_sequences == rows:
                return time.perf_counter() - start

    def _limit_seconds(self, rows: int, keys: int) -> float:
        """What reading weights and keys, or else the multiplications, take at the least."""
        info = self.engine.model
        itemsize = 1 if self.is_quantized else 4 if info.dtype == "float32" else 2
        num_bytes = info.num_parameters * itemsize + keys * info.kv_bytes_per_token
        reading: float = num_bytes / (self.machine["memory_read_gb_per_second"] * 1e9)
        products = 2 * info.num_parameters * rows
        computing: float = products / (self.machine["bf16_matmul_gflops"] * 1e9)
        return max(reading, computing)


def main() -> int:
    """Print a line for the machine, then one for each number of rows and each context."""
    options = _arguments()
    machine = machine_figures()
    print_line({"measured": "machine", **machine})
    engine = Engine(
        EngineConfig(
            model_id=options.model_id or str(bundled_model_path()),
            dtype=options.dtype,
            quantize=options.quantize,
            attention=options.attention,
            disable_custom_kernels=options.disable_custom_kernels,
            max_batch_total_tokens=options.kv_tokens,
            prefix_caching=False,
        )
    )
    bench = Bench(engine, options.steps, machine, options.quantize is not None)
    for context in options.context:
        for rows in options.rows:
            if rows * (context + LONGEST) <= options.kv_tokens:
                print_line(bench.decode(rows, context))
    engine.close()
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-id")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantize", choices=["int8"])
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--disable-custom-kernels", action="store_true")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 64, 128])
    parser.add_argument("--context", type=int, nargs="+", default=[128])
    parser.add_argument("--steps", type=int, default=20, help="measured in each place")
    parser.add_argument("--kv-tokens", type=int, default=262144, help="size of the KV cache")
    return parser.parse_args()


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 2)


if __name__ == "__main__":
    sys.exit(main())
