"""The engine's step, without server and clients, against what the machine could do at best.

Measures prompts and the memory that they take, decode steps of numbers of sequences at lengths of
context, and steps before a long queue. With --beside, others decode the same in turn.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import psutil

from benchmarks.machine import computing_gflops, machine_figures
from benchmarks.report import Report
from benchmarks.steps import MARGIN, EngineSteps, StepTimes
from benchmarks.transformers_steps import TransformersSteps
from tokenloom_engine.config import EngineConfig
from tokenloom_engine.messages import ModelInfo
from tokenloom_server.bundled_model import bundled_model_path

OURS = "tokenloom"
ROUNDS = 2
"""How often each takes its turn in each place."""
TORCH_TOKENS = 65536
"""Size of the KV cache of the engine without kernels."""
QUEUE_ROWS, QUEUE_CONTEXT = 32, 128


class Decoder(Protocol):
    """What decodes sequences step by step."""

    def fits(self, rows: int, context: int) -> bool:
        """Whether it can be measured so."""
        ...

    def decode(self, rows: int, context: int, steps: int) -> StepTimes:
        """Steps in which each of `rows` sequences of about `context` tokens gets one more."""
        ...


@dataclass(frozen=True, slots=True)
class Limit:
    """What the machine could do at best, by its speeds in the same run."""

    read_gb_per_second: float
    gflops: float
    """Of the dtype that is computed in."""
    info: ModelInfo
    is_quantized: bool

    def seconds(self, rows: int, keys: int) -> float:
        """What reading weights and keys, or else the multiplications, take at the least."""
        info = self.info
        itemsize = 1 if self.is_quantized else 4 if info.dtype == "float32" else 2
        num_bytes = info.num_parameters * itemsize + keys * info.kv_bytes_per_token
        reading = num_bytes / (self.read_gb_per_second * 1e9)
        products = 2 * info.num_parameters * rows
        computing = products / (self.gflops * 1e9)
        return max(reading, computing)


def main() -> int:
    """Print a line for the machine, then one for each thing that was measured."""
    options = _arguments()
    report = Report(options.output)
    machine = machine_figures()
    report.add({"measured": "machine", **machine})
    config = EngineConfig(
        model_id=options.model_id or str(bundled_model_path()),
        dtype=options.dtype,
        quantize=options.quantize,
        attention=options.attention,
        disable_custom_kernels=options.disable_custom_kernels,
        max_batch_total_tokens=options.kv_tokens,
        speculate=0,  # a row is to have one token
    )
    steps = EngineSteps(config)
    info = steps.engine.model
    if "prompts" in options.parts:
        _measure_prompts(steps, options.context, report)
    if "decode" in options.parts:
        steps.touch_cache()
        is_quantized = options.quantize is not None
        gflops = computing_gflops(info.dtype, is_quantized=is_quantized)
        report.add({"measured": "limit", "dtype": info.dtype, "matmul_gflops": round(gflops)})
        limit = Limit(machine["memory_read_gb_per_second"], gflops, info, is_quantized)
        decoders: dict[str, Decoder] = {OURS: steps}
        if "torch" in options.beside:
            slow = msgspec.structs.replace(
                config,
                quantize=None,
                attention="auto",
                disable_custom_kernels=True,
                max_batch_total_tokens=TORCH_TOKENS,
            )
            decoders["torch"] = torch_steps = EngineSteps(slow)
            torch_steps.touch_cache()
        if "transformers" in options.beside:
            decoders["transformers"] = TransformersSteps(info.model_path, info.dtype)
        for context in options.context:
            for rows in options.rows:
                if steps.fits(rows, context):
                    _measure_decode(decoders, rows, context, options.steps, limit, report)
    steps.close()
    if "queue" in options.parts:
        _measure_queue(config, options.steps, report)
    report.add({"measured": "machine", **machine_figures()})
    return 0


def _measure_prompts(steps: EngineSteps, contexts: list[int], report: Report) -> None:
    steps.prefill(32)  # what is done for the first time
    before = psutil.Process().memory_info().rss
    for context in contexts:
        seconds = steps.prefill(context)
        report.add(
            {
                "measured": "prompt",
                "context": context,
                "seconds": round(seconds, 3),
                "tokens_per_second": round(context / seconds, 1),
            }
        )
    grown = psutil.Process().memory_info().rss - before
    report.add(
        {
            "measured": "memory",
            "tokens": sum(contexts),
            "kv_mb_per_1000_tokens": round(steps.engine.model.kv_bytes_per_token / 1000, 2),
            "grown_mb_per_1000_tokens": round(grown / sum(contexts) / 1000, 2),
        }
    )


def _measure_decode(
    decoders: dict[str, Decoder], rows: int, context: int, steps: int, limit: Limit, report: Report
) -> None:
    times: dict[str, StepTimes] = defaultdict(StepTimes)
    for _ in range(ROUNDS):
        for name, decoder in decoders.items():
            if decoder.fits(rows, context):
                times[name].extend(decoder.decode(rows, context, -(-steps // ROUNDS)))
    best = limit.seconds(rows, rows * context)
    medians = {name: statistics.median(t.whole) for name, t in times.items()}
    for name, of in times.items():
        line = {
            "measured": "decode",
            "by": name,
            "rows": rows,
            "context": context,
            "step_ms": _ms(medians[name]),
            "step_min_ms": _ms(min(of.whole)),
            "step_max_ms": _ms(max(of.whole)),
            "tokens_per_second": round(rows / medians[name], 1),
            "limit_ms": _ms(best),
            "times_limit": round(medians[name] / best, 2),
            "times_ours": round(medians[name] / medians[OURS], 2),
        }
        if of.forward:
            line["forward_ms"] = _ms(statistics.median(of.forward))
        report.add(line)


def _measure_queue(config: EngineConfig, steps: int, report: Report) -> None:
    """In an engine whose KV cache has room for those that decode, and no more."""
    room = QUEUE_ROWS * (QUEUE_CONTEXT + MARGIN)
    queue = EngineSteps(msgspec.structs.replace(config, max_batch_total_tokens=room))
    times = {0: StepTimes(), 1000: StepTimes()}
    for _ in range(ROUNDS):
        for waiting, of in times.items():
            of.extend(queue.decode_before_queue(QUEUE_ROWS, QUEUE_CONTEXT, steps, waiting))
    queue.close()
    medians = {waiting: statistics.median(of.whole) for waiting, of in times.items()}
    for waiting, of in times.items():
        report.add(
            {
                "measured": "queue",
                "waiting": waiting,
                "rows": QUEUE_ROWS,
                "context": QUEUE_CONTEXT,
                "step_ms": _ms(medians[waiting]),
                "step_max_ms": _ms(max(of.whole)),
                "times_without": round(medians[waiting] / medians[0], 3),
            }
        )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-id")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantize", choices=["int8"])
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--disable-custom-kernels", action="store_true")
    parts = ["prompts", "decode", "queue"]
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 64, 128])
    parser.add_argument("--context", type=int, nargs="+", default=[128])
    parser.add_argument(
        "--beside",
        nargs="+",
        choices=["torch", "transformers"],
        default=[],
        help="torch: the engine without kernels; transformers: its forward alone",
    )
    parser.add_argument("--steps", type=int, default=20, help="measured in each place")
    parser.add_argument("--kv-tokens", type=int, default=270336, help="size of the KV cache")
    parser.add_argument("--output", type=Path, help="keep the lines in this file, as a JSON array")
    return parser.parse_args()


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 2)


if __name__ == "__main__":
    sys.exit(main())
