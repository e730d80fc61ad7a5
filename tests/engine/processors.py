"""Logits processors for the tests, and a way to install them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import torch
from transformers import NoRepeatNGramLogitsProcessor

from tokenloom_engine.logits_processors import (
    GROUP,
    Args,
    LogitsProcessor,
    PoolingFactory,
    ProcessorContext,
    from_transformers,
)
from tokenloom_engine.messages import LogitsProcessorSpec

V = 64
CONTEXT = ProcessorContext(vocab_size=V, eos_token_ids=(2,), tokenizer_file="", device="cpu")
SKIP = LogitsProcessorSpec("skip")
NO_REPEAT = from_transformers(NoRepeatNGramLogitsProcessor)
INSTALLED = {
    "fault": "tests.engine.processors:Faults",
    "no_repeat": "tests.engine.processors:NO_REPEAT",
    "skip": "tests.engine.processors:Skips",
}


class Skip:
    """At its n-th call rules out the n % 3 best tokens: each call more or less is seen."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, ids: Sequence[int], scores: torch.Tensor, /) -> torch.Tensor:
        best = scores.topk(self.num_calls % 3).indices
        self.num_calls += 1
        scores[best] = -torch.inf
        return scores

    def reset(self) -> None:
        self.num_calls = 0


class Skips(PoolingFactory):
    """Takes no arguments. Knows which of its processors are with a sequence."""

    lent: ClassVar[list[LogitsProcessor]] = []

    def create(self, args: Args) -> Skip:
        if args:
            raise ValueError("it takes nothing")
        return Skip()

    def get_processor(self, args: Args, /) -> LogitsProcessor:
        processor = super().get_processor(args)
        self.lent.append(processor)
        return processor

    def return_processor(self, processor: LogitsProcessor, args: Args, /) -> None:
        self.lent.remove(processor)
        super().return_processor(processor, args)


class Fault:
    """Does something wrong at a certain call."""

    def __init__(self, kind: str, at_call: int) -> None:
        self._kind = kind
        self._calls_to_go = at_call

    def __call__(self, ids: Sequence[int], scores: torch.Tensor, /) -> torch.Tensor:
        self._calls_to_go -= 1
        if self._calls_to_go:
            return scores
        match self._kind:
            case "raise":
                raise KeyError("of no interest to the client")
            case "none":
                return None  # type: ignore[return-value]
            case "shape":
                return scores[1:]
            case "resize":
                return scores.resize_(3)
            case "dtype":
                return scores.double()
            case "nan":
                scores[7] = torch.nan
            case "inf":
                scores[7] = torch.inf
            case "nothing":
                scores.fill_(-torch.inf)
        return scores

    def reset(self) -> None:
        pass


class Faults(PoolingFactory):
    """Takes `kind` and `at_call`."""

    def validate(self, args: Args, /) -> None:
        if args.get("kind") == "validate":
            raise TypeError("the factory itself")

    def create(self, args: Args) -> Fault:
        return Fault(args["kind"], args.get("at_call", 1))


def install(folder: Path, package: str, **processors: str) -> None:
    """Put a package's metadata in a folder of the module path: names and `module:object`."""
    info = folder / f"{package}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
    lines = [f"{name} = {target}" for name, target in processors.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines, ""]))
