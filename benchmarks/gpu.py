"""The engine on a GPU: whether it says what transformers says, and how near it is to the limit.

For a machine with a GPU, in one command. Prints a line for each thing, and exits with 1 where texts
are not as they must be. `--device cpu` tries the command itself.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from benchmarks.engine import Limit
from benchmarks.report import Report
from benchmarks.schemas import PERSON
from benchmarks.steps import MARGIN, EngineSteps
from tokenloom_engine.bitmask import BitmaskFill, bitmask_bias
from tokenloom_engine.config import EngineConfig
from tokenloom_engine.llm import LLM
from tokenloom_engine.messages import LogprobParams, StoppingParams
from tokenloom_server.bundled_model import bundled_model_path

PROMPTS = [
    f"{text} {number}" for number in range(6) for text in ("The river", "def f(x):", "1, 2,")
]
PROMPTS += ["Once upon a time there was a lighthouse that " * count for count in (4, 20, 60)]
NEW_TOKENS = 64
LEAST_SHARED = 0.5
"""In two bytes a number, so much of the texts must be the same before roundings part them."""
REPEATS = 7


def main() -> int:
    """Run the parts that are asked for."""
    options = _arguments()
    report = Report(options.output)
    device = torch.device(options.device)
    report.add({"measured": "machine", **_machine_figures(device, options.megabytes)})
    is_right = True
    model_id = options.model_id or str(bundled_model_path())
    common = {"device": options.device, "max_batch_total_tokens": options.kv_tokens}
    if "texts" in options.parts:
        is_right &= _compare_texts(model_id, common, report)
    if "masks" in options.parts:
        is_right &= _compare_masks(device, report)
    if "decode" in options.parts:
        ways: list[dict[str, Any]] = [{}, {"cuda_graphs": ()}, _other_order(options.device)]
        for settings in ways:
            config = EngineConfig(model_id=model_id, **common, **settings)
            _measure_decode(config, options, report)
    if "throughput" in options.parts:
        _measure_throughput(model_id, common, options, report)
    return 0 if is_right else 1


def _compare_texts(model_id: str, common: dict[str, Any], report: Report) -> bool:
    """In float32 all texts must be those of transformers; in bfloat16, up to roundings."""
    is_right = True
    path = _model_path(model_id, common)
    for dtype in ("float32", "bfloat16"):
        expected = _generate(path, dtype, common["device"])
        ways: dict[str, dict[str, Any]] = {"as it comes": {}, "sdpa": {"attention": "sdpa"}}
        ways["in the other order"] = _other_order(common["device"])
        if dtype == "bfloat16":
            ways["without graphs"] = {"cuda_graphs": ()}
        for way, settings in ways.items():
            llm = LLM(model_id, dtype=dtype, **{**common, **settings})
            outputs = [llm.generate(PROMPTS, stopping=_stopping(NEW_TOKENS)) for _ in range(2)]
            schema = {"kind": "json_schema", "value": PERSON}
            whole = llm.generate(
                PROMPTS, constraint=schema, stopping=StoppingParams(max_new_tokens=300)
            )
            attention = llm._engine.model.attention
            llm.close()
            del llm
            _free()
            for turn, found in zip(("computed", "from the prefix cache"), outputs, strict=True):
                ids = [[token.id for token in output.tokens] for output in found]
                shares = [_shared(*pair) for pair in zip(ids, expected, strict=True)]
                is_right &= (
                    min(shares) == 1
                    if dtype == "float32"
                    else (statistics.mean(shares) >= LEAST_SHARED)
                )
                report.add(
                    {
                        "measured": "texts",
                        "dtype": dtype,
                        "way": way,
                        "attention": attention,
                        "turn": turn,
                        "texts": len(shares),
                        "equal": sum(share == 1 for share in shares),
                        "shared": round(statistics.mean(shares), 3),
                    }
                )
            valid = sum(_is_json(output.text) for output in whole)
            is_right &= valid == len(PROMPTS)
            line = {"measured": "constrained", "dtype": dtype, "way": way}
            report.add({**line, "texts": len(PROMPTS), "valid": valid})
    return is_right


def _compare_masks(device: torch.device, report: Report) -> bool:
    """The one kernel against lookups by torch, and what each takes."""
    fill, rows, vocab_size = BitmaskFill(device), list(range(0, 64, 2)), 128_256
    random = np.random.default_rng(0)
    bitmask = random.integers(-(2**31), 2**31, (len(rows), vocab_size // 32)).astype(np.int32)
    scores = torch.randn(64, vocab_size, device=device)
    expected = scores.clone()
    expected[rows] += bitmask_bias(bitmask, vocab_size, device)
    fill.apply(scores, rows, bitmask)
    is_right = torch.equal(scores, expected)
    seconds = _median_seconds(lambda: fill.apply(scores, rows, bitmask), device)
    line = {"measured": "masks", "rows": len(rows), "vocab_size": vocab_size, "equal": is_right}
    report.add({**line, "is_fused": fill._fused is not None, "ms": _ms(seconds)})
    return is_right


def _measure_decode(config: EngineConfig, options: argparse.Namespace, report: Report) -> None:
    steps = EngineSteps(config)
    info, graphs = steps.engine.model, steps.engine._runner.graphs
    steps.touch_cache()
    machine = report.lines[0]
    limit = Limit(
        machine["memory_read_gb_per_second"],
        machine["bf16_matmul_gflops"],
        info,
        is_quantized=False,
    )
    for context in options.context:
        for rows in options.rows:
            if not steps.fits(rows, context):
                continue
            whole = steps.decode(rows, context, options.steps).whole
            median, best = statistics.median(whole), limit.seconds(rows, rows * context)
            report.add(
                {
                    "measured": "decode",
                    "attention": info.attention,
                    "graphs": [] if graphs is None else graphs.sizes,
                    "launches_early": steps.engine.launches_early,
                    "rows": rows,
                    "context": context,
                    "step_ms": _ms(median),
                    "step_max_ms": _ms(max(whole)),
                    "tokens_per_second": round(rows / median, 1),
                    "limit_ms": _ms(best),
                    "times_limit": round(median / best, 2),
                }
            )
    steps.close()
    del steps
    _free()


def _measure_throughput(
    model_id: str, common: dict[str, Any], options: argparse.Namespace, report: Report
) -> None:
    """The same prompts by our engine and by transformers' continuous batching."""
    random = np.random.default_rng(1)
    count, new_tokens = max(options.rows), options.new_tokens
    llm = LLM(model_id, **common)
    width = llm._engine.vocabulary.size
    # The first are for what is done once, and unlike the others: no prefix is in a cache.
    first, prompts = random.integers(3, width, (2, count, 128)).tolist()
    dtype, path = llm._engine.model.dtype, llm._engine.model.model_path
    logprobs = LogprobParams()
    llm.generate(first, stopping=_stopping(new_tokens), logprobs=logprobs)
    start = time.perf_counter()
    outputs = llm.generate(prompts, stopping=_stopping(new_tokens), logprobs=logprobs)
    seconds = {"tokenloom": time.perf_counter() - start}
    assert all(len(output.tokens) == new_tokens for output in outputs)
    llm.close()
    del llm
    _free()
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
    model.to(common["device"]).eval()
    config = _greedy(new_tokens, -1)
    kept: dict[str, Any] = {}
    if "persistent_manager" in inspect.signature(model.generate_batch).parameters:
        kept["persistent_manager"] = True
    model.generate_batch(first, generation_config=config, **kept)
    start = time.perf_counter()
    found = model.generate_batch(prompts, generation_config=config, **kept)
    seconds["transformers"] = time.perf_counter() - start
    num_tokens = sum(len(output.generated_tokens) for output in found.values())
    for by, taken in seconds.items():
        tokens = num_tokens if by == "transformers" else count * new_tokens
        report.add(
            {
                "measured": "throughput",
                "by": by,
                "prompts": count,
                "new_tokens": tokens,
                "tokens_per_second": round(tokens / taken, 1),
                "times_ours": round(taken / tokens * count * new_tokens / seconds["tokenloom"], 2),
            }
        )


def _other_order(device: str) -> dict[str, Any]:
    """Words before the next launch on a GPU, and after it on a CPU."""
    return {"launch_early": device == "cpu"}


def _generate(path: str, dtype: str, device: str) -> list[list[int]]:
    """What transformers generates for each prompt, alone."""
    from transformers import AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
    model.to(device).eval()
    tokenizer = AutoTokenizer.from_pretrained(path)
    config = _greedy(NEW_TOKENS, None)
    texts = []
    for prompt in PROMPTS:
        inputs = tokenizer(prompt, return_tensors="pt").to(device)
        ids = model.generate(**inputs, generation_config=config)
        texts.append(ids[0, inputs["input_ids"].shape[1] :].tolist())
    del model
    _free()
    return texts


def _model_path(model_id: str, common: dict[str, Any]) -> str:
    """The folder that the engine loads: of a GGUF file, what it was converted to."""
    llm = LLM(model_id, **common)
    path = llm._engine.model.model_path
    llm.close()
    del llm
    _free()
    return path


def _greedy(new_tokens: int, eos_token_id: int | None) -> GenerationConfig:
    return GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=new_tokens, do_sample=False, eos_token_id=eos_token_id
    )


def _machine_figures(device: torch.device, megabytes: int) -> dict[str, Any]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    memory = torch.ones(megabytes * 2**20 // 8, dtype=torch.int64, device=device)
    reading = _median_seconds(memory.sum, device)
    width = 8192 if device.type == "cuda" else 1024
    left, right = (torch.ones(width, width, dtype=torch.bfloat16, device=device) for _ in range(2))
    multiplying = _median_seconds(lambda: left @ right, device)
    return {
        "device": name,
        "torch": torch.__version__,
        "memory_read_gb_per_second": round(memory.nbytes / reading / 1e9, 1),
        "bf16_matmul_gflops": round(2 * width**3 / multiplying / 1e9),
    }


def _median_seconds(work: Callable[[], object], device: torch.device) -> float:
    seconds = []
    for _ in range(REPEATS):
        _wait(device)
        start = time.perf_counter()
        work()
        _wait(device)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _stopping(new_tokens: int) -> StoppingParams:
    return StoppingParams(max_new_tokens=new_tokens, ignore_eos=True)


def _shared(found: list[int], expected: list[int]) -> float:
    """How much of a text is as expected before the first other token."""
    pairs: Iterable[tuple[int, int]] = zip(found, expected, strict=True)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(expected))
    return same / len(expected)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-id")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parts = ["texts", "masks", "decode", "throughput"]
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 64, 128])
    parser.add_argument("--context", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--steps", type=int, default=40, help="measured in each place")
    parser.add_argument("--new-tokens", type=int, default=128, help="of each prompt of throughput")
    room = 128 * (1024 + MARGIN)
    parser.add_argument("--kv-tokens", type=int, default=room, help="size of the KV cache")
    parser.add_argument("--megabytes", type=int, default=4096, help="read for the memory's speed")
    parser.add_argument("--output", type=Path, help="keep the lines in this file, as a JSON array")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
