"""A sequence's own processor, and what it makes of scores."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from tokenloom_engine.logits_processors.base import LogitsProcessor, ProcessorError
from tokenloom_engine.messages import LogitsProcessorSpec

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class LeasedProcessor:
    """A processor that is one sequence's alone until it is given back."""

    spec: LogitsProcessorSpec
    processor: LogitsProcessor
    has_failed: bool = False

    def apply(self, ids: Seq[int], scores: torch.Tensor) -> torch.Tensor:
        """The changed scores [V]; the given ones stay. Raises ProcessorError."""
        try:
            changed = self.processor(ids, scores.clone())
            problem = _problem(changed, scores)
        except Exception as error:  # whatever it raises, it is its own row's
            logger.exception("logits processor %s failed; its sequence ends", self.spec.name)
            problem = type(error).__name__
        if problem is not None:
            self.has_failed = True
            raise ProcessorError(f"the logits processor {self.spec.name} failed: {problem}")
        return changed


def _problem(changed: object, scores: torch.Tensor) -> str | None:
    """What is wrong with the answer to these scores."""
    if not isinstance(changed, torch.Tensor):
        return f"it returned a {type(changed).__name__}"
    if changed.shape != scores.shape or changed.dtype != scores.dtype:
        return f"it returned {_form(changed)} instead of {_form(scores)}"
    if not bool((changed < torch.inf).all()):  # false for NaN as well
        return "it returned NaN or +inf"
    return None


def _form(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
