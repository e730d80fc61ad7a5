"""Rotary embeddings whose factors depend on the length of the text.

transformers takes the factors of `longrope` and `dynamic` from the largest position of a call. Here
a call is a batch of many sequences, so each token is given the factors of its own sequence.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, cast

import torch
from transformers import PreTrainedConfig

from tokenloom_engine.errors import LoadError

LENGTH_DEPENDENT = ("longrope", "dynamic")
"""Values of `rope_type`, or parts of it, for which transformers recomputes factors in a forward."""
OLDER_NAMES = ("su",)
"""Of longrope, in the code that comes with some models."""


Angles = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines, [..., T, dim]."""


def rope_parameters(config: PreTrainedConfig) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """Each set of parameters with the layer type that it is for; None is all layers."""
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if not isinstance(parameters, dict):
        return
    by_layer_type = {k: v for k, v in parameters.items() if isinstance(v, dict)}
    if not by_layer_type:
        yield None, parameters
    yield from by_layer_type.items()


def rope_type(parameters: dict[str, Any]) -> str:
    """Its name, under the key that the parameters have."""
    return str(parameters.get("rope_type") or parameters.get("type") or "default")


def context_length(config: PreTrainedConfig) -> int | None:
    """Longest text that the configuration allows; None if it does not tell.

    `max_position_embeddings`, or what a scaled rotary embedding makes of it: `factor` times
    `original_max_position_embeddings`. Where that is not given, `linear` (of all layers) and
    `dynamic` scale `max_position_embeddings`.
    """
    longest: int | None = getattr(config, "max_position_embeddings", None)
    if longest is None:
        return None
    lengths = [longest]
    for layer_type, parameters in rope_parameters(config):
        factor, kind = parameters.get("factor"), rope_type(parameters)
        original = parameters.get("original_max_position_embeddings")
        if not isinstance(factor, int | float) or kind in ("llama3", "proportional"):
            continue
        if isinstance(original, int | float):
            lengths.append(int(original * factor))
        elif (kind == "linear" and layer_type is None) or "dynamic" in kind:
            lengths.append(int(longest * factor))
    return max(lengths)


def scale_rope(config: PreTrainedConfig, kind: str | None, factor: float | None) -> None:
    """Scale a plain rotary embedding, in place of the configuration's own parameters.

    `kind`: linear or dynamic, linear if None. Raises LoadError where that cannot be.
    """
    if kind is None and factor is None:
        return
    if factor is None:
        raise LoadError(f"`rope_scaling` is {kind!r} without `rope_factor`: give both")
    if not factor >= 1:
        raise LoadError(f"`rope_factor` is {factor:g}, and must be at least 1")
    found = list(rope_parameters(config))
    if not found:
        raise LoadError(
            f"`rope_scaling` is for models with a rotary embedding, and {config.model_type!r} has "
            "none: leave it out"
        )
    for layer_type, parameters in found:
        if layer_type is not None or rope_type(parameters) != "default":
            raise LoadError(
                f"`rope_scaling` is for a plain rotary embedding, and the model's config.json has "
                f"{rope_type(parameters)!r}{f' for {layer_type}' if layer_type else ''}: "
                "set its parameters there"
            )
        parameters |= {"rope_type": kind or "linear", "factor": float(factor)}


class RopeRanges:
    """Two sets of factors: of texts of up to `limit` tokens, and of longer ones.

    Longer texts all have the factors that transformers computes for one of `longest` tokens.
    """

    def __init__(self, kind: str, limit: int, longest: int) -> None:
        self.kind = kind
        self.limit = limit
        self.longest = max(longest, limit + 1)
        self.is_long: torch.Tensor | None = None
        """bool [1, T], the tokens of longer texts in the forward that runs; None is none of them.
        """
        self.follows_call = False
        """Whether the forward that runs takes its factors from its largest position, as
        transformers does."""

    @classmethod
    def install(cls, network: torch.nn.Module, config: PreTrainedConfig) -> RopeRanges | None:
        """Replace the rotary embeddings of a network that need it. None if there are none.

        Raises LoadError where the configuration asks for one that the network does not have.
        """
        sets = [found for _, found in rope_parameters(config) if _depends_on_length(found)]
        if not sets:
            return None
        kind = " and ".join(sorted({rope_type(parameters) for parameters in sets}))
        limits = {_limit(config, parameters) for parameters in sets}
        if len(limits) > 1:
            raise LoadError(f"rope_type {kind!r} with several limits {sorted(limits)} is not built")
        limit = limits.pop()
        ranges = cls(kind, limit, context_length(config) or limit)
        found = [
            (parent, name, child)
            for parent in network.modules()
            for name, child in parent.named_children()
            if any(_is_length_dependent(str(own)) for own in _own_types(child))
        ]
        if not found:
            raise LoadError(
                f"rope_type {kind!r} depends on the length of a text, and the model's code has no "
                "rotary embedding of transformers that says so"
            )
        replaced = {child: RangedRotary(child, ranges) for _, _, child in found}
        for parent, name, child in found:
            setattr(parent, name, replaced[child])
        return ranges

    def __str__(self) -> str:
        return (
            f"Rotary embedding {self.kind}: one set of factors for texts of up to {self.limit} "
            f"tokens, one for longer ones; a text that grows beyond is computed again"
        )


class RangedRotary(torch.nn.Module):
    """A rotary embedding of transformers that computes each token in the range of its text."""

    def __init__(self, rotary: torch.nn.Module, ranges: RopeRanges) -> None:
        super().__init__()
        self._ranges = ranges
        self.limit, self.longest = ranges.limit, ranges.longest
        # Their state is what they have computed last, so each range has a copy of its own.
        self._own, self._short, self._long = (copy.deepcopy(rotary) for _ in range(3))

    def forward(
        self,
        x: torch.Tensor,
        position_ids: torch.Tensor,
        layer_type: str | None = None,
    ) -> torch.Tensor | Angles:
        """Compute what the model's own does, with position_ids [..., T]."""
        ranges = self._ranges
        kwargs = {} if layer_type is None else {"layer_type": layer_type}
        if ranges.follows_call:
            return cast(
                "torch.Tensor | Angles", copy.deepcopy(self._own)(x, position_ids, **kwargs)
            )
        if ranges.is_long is None:
            return self.short(x, position_ids, **kwargs)
        long = self.long(x, position_ids, **kwargs)
        short = self.short(x, position_ids.masked_fill(ranges.is_long, 0), **kwargs)
        is_long = ranges.is_long.unsqueeze(-1)
        if isinstance(short, torch.Tensor):
            assert isinstance(long, torch.Tensor)
            return torch.where(is_long, long, short)
        return torch.where(is_long, long[0], short[0]), torch.where(is_long, long[1], short[1])

    def short(
        self, x: torch.Tensor, position_ids: torch.Tensor, **kwargs: str
    ) -> torch.Tensor | Angles:
        """Compute as in a text of up to `limit` tokens. Positions must be below it."""
        angles: torch.Tensor | Angles = self._short(x, position_ids, **kwargs)
        return angles

    def long(
        self, x: torch.Tensor, position_ids: torch.Tensor, **kwargs: str
    ) -> torch.Tensor | Angles:
        """Compute as in a text of `longest` tokens."""
        last = position_ids.new_full((*position_ids.shape[:-1], 1), self._ranges.longest - 1)
        angles = self._long(x, torch.cat([position_ids, last], dim=-1), **kwargs)
        if isinstance(angles, torch.Tensor):
            return angles[..., :-1, :]
        cosines, sines = angles
        return cosines[..., :-1, :], sines[..., :-1, :]


def _depends_on_length(parameters: dict[str, Any]) -> bool:
    if not _is_length_dependent(rope_type(parameters)):
        return False
    pairs = [
        (v, parameters.get(f"long_{k[6:]}")) for k, v in parameters.items() if k[:6] == "short_"
    ]
    return not pairs or any(short != long for short, long in pairs)


def _is_length_dependent(kind: str) -> bool:
    return any(part in kind for part in LENGTH_DEPENDENT) or kind in OLDER_NAMES


def _own_types(module: torch.nn.Module) -> list[object]:
    own = getattr(module, "rope_type", None)
    return list(own.values()) if isinstance(own, dict) else [own]


def _limit(config: PreTrainedConfig, parameters: dict[str, Any]) -> int:
    """Longest text with the first set of factors."""
    if "dynamic" in rope_type(parameters):
        return int(config.max_position_embeddings)
    original = parameters.get("original_max_position_embeddings")
    original = original or getattr(config, "original_max_position_embeddings", None)
    return int(original or config.max_position_embeddings)
