"""Classes of transformers as logits processors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import partial
from typing import Any

import torch

from tokenloom_engine.logits_processors.base import (
    Args,
    LogitsProcessorFactory,
    ProcessorContext,
)
from tokenloom_engine.logits_processors.pooling import PoolingFactory

TransformersCall = Callable[[Any, Any], torch.Tensor]
"""An instance of a transformers LogitsProcessor: [1, n] ids, [1, V] scores -> [1, V] scores."""


class TransformersProcessor:
    """One of transformers' own LogitsProcessors, for one sequence."""

    def __init__(self, create: Callable[[], TransformersCall]) -> None:
        self._create = create
        self._processor = create()

    def __call__(self, ids: Seq[int], scores: torch.Tensor, /) -> torch.Tensor:
        """See LogitsProcessor."""
        input_ids = torch.tensor([ids], device=scores.device)
        return self._processor(input_ids, scores.unsqueeze(0))[0]

    def reset(self) -> None:
        """See LogitsProcessor. (Theirs have no way to start anew.)"""
        self._processor = self._create()


class TransformersFactory(PoolingFactory):
    """Makes processors of a class of transformers."""

    def __init__(
        self,
        processor_class: Callable[..., TransformersCall],
        fixed: dict[str, Any],
        context: ProcessorContext,
    ) -> None:
        """`fixed`: arguments that a request cannot give."""
        super().__init__(context)
        self._class = processor_class
        self._fixed = fixed
        if "device" in inspect.signature(processor_class).parameters:
            self._fixed = {"device": context.device, **fixed}

    def create(self, args: Args) -> TransformersProcessor:
        """See PoolingFactory."""
        if taken := sorted(self._fixed.keys() & args.keys()):
            raise ValueError(f"`{taken[0]}` cannot be given")
        try:
            return TransformersProcessor(partial(self._class, **args, **self._fixed))
        except Exception as error:  # whatever a constructor raises, the arguments made it
            raise ValueError(str(error)) from error


def from_transformers(
    processor_class: Callable[..., TransformersCall],
    **fixed: Any,  # noqa: ANN401 - any of the constructor's
) -> Callable[[ProcessorContext], LogitsProcessorFactory]:
    """What an entry point of a transformers LogitsProcessor class has to be.

    A request's `args` are the constructor's arguments, but for those that are `fixed` here, and
    `device`, which is filled in.
    """
    return partial(TransformersFactory, processor_class, fixed)
