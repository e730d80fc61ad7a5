"""Custom logits processors: what a package must offer, and how each sequence gets its own.

A package names factories in the entry point group `tokenloom.logits_processors`; a request asks for
one by the name of its entry point. `docs/extending-constraints.md` walks through such a package.
"""

from __future__ import annotations

import inspect
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, runtime_checkable

import msgspec
import torch

from tokenloom_engine.errors import LoadError
from tokenloom_engine.messages import LogitsProcessorSpec

logger = logging.getLogger(__name__)

GROUP = "tokenloom.logits_processors"
"""The entry points are callables that take a ProcessorContext and return a factory."""
MAX_IDLE = 64
"""Processors that a PoolingFactory keeps."""

Args = Mapping[str, Any]
"""What a request gives a processor: strings, numbers, booleans, None, lists and dicts."""


class ProcessorError(Exception):
    """A processor failed. The message is for the client of its sequence."""


class LogitsProcessor(Protocol):
    """Changes what one sequence's next token is drawn from. Never shared between sequences."""

    def __call__(self, ids: Seq[int], scores: torch.Tensor, /) -> torch.Tensor:
        """The scores to draw from: `scores`, which may be changed in place, or a new tensor.

        `ids` is the prompt and what was generated. `scores` is float32 [V], after the penalties;
        ids without a token have -inf. So must be what is returned, on any device; -inf rules a
        token out, NaN and +inf are errors.

        Called once for each token drawn. Where the constraint leaves no choice it is not called:
        `ids` may have grown by several tokens since the last time.
        """
        ...

    def reset(self) -> None:
        """Forget the sequence: be as when it was made."""
        ...


@runtime_checkable
class LogitsProcessorFactory(Protocol):
    """Makes the processors of one name. One a process, and used by one thread.

    It runs between steps, while all sequences wait: loading and heavy work belong to its making.
    """

    def validate(self, args: Args, /) -> None:
        """Raises ValueError with the reason, which the client reads, if it cannot take these."""
        ...

    def get_processor(self, args: Args, /) -> LogitsProcessor:
        """A processor that nobody else has, as if new. The arguments are validated."""
        ...

    def return_processor(self, processor: LogitsProcessor, args: Args, /) -> None:
        """Take back what `get_processor(args)` gave, to keep or to drop.

        A processor that failed does not come back.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorContext:
    """What a factory may need to know of the model."""

    vocab_size: int
    """V, the width of the scores; may exceed the number of the tokenizer's entries."""
    eos_token_ids: tuple[int, ...]
    """All tokens that end a text, ascending."""
    tokenizer_file: str
    """A tokenizer.json, to read with the tokenizers library."""
    device: str
    """Where the scores are, as torch names it."""


class PoolingFactory(ABC):
    """A factory that resets and keeps what comes back. Its author writes `create` alone."""

    def __init__(self, context: ProcessorContext) -> None:
        self.context = context
        self._idle: deque[tuple[bytes, LogitsProcessor]] = deque(maxlen=MAX_IDLE)

    @abstractmethod
    def create(self, args: Args) -> LogitsProcessor:
        """A new processor. Raises ValueError with the reason if it cannot take these arguments."""

    def validate(self, args: Args, /) -> None:
        """See LogitsProcessorFactory. What it makes to find out is kept for `get_processor`."""
        self.return_processor(self.get_processor(args), args)

    def get_processor(self, args: Args, /) -> LogitsProcessor:
        """See LogitsProcessorFactory."""
        wanted = _key(args)
        for at, (key, processor) in enumerate(self._idle):
            if key == wanted:
                del self._idle[at]
                return processor
        return self.create(args)

    def return_processor(self, processor: LogitsProcessor, args: Args, /) -> None:
        """See LogitsProcessorFactory."""
        processor.reset()
        self._idle.append((_key(args), processor))


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


class LogitsProcessors:
    """The logits processors that are installed."""

    def __init__(self, factories: Mapping[str, LogitsProcessorFactory]) -> None:
        self._factories = dict(sorted(factories.items()))

    @classmethod
    def load(cls, context: ProcessorContext) -> LogitsProcessors:
        """Load all that are installed. Raises LoadError, naming the package at fault."""
        factories: dict[str, LogitsProcessorFactory] = {}
        packages: dict[str, str] = {}
        for entry_point in entry_points(group=GROUP):
            name, package = entry_point.name, _package(entry_point)
            if name in packages:
                raise LoadError(
                    f"the packages {packages[name]} and {package} both have a logits processor "
                    f"{name}: uninstall one"
                )
            packages[name] = package
            factories[name] = _load_factory(entry_point, context)
        return cls(factories)

    @property
    def names(self) -> list[str]:
        """Theirs, in order."""
        return list(self._factories)

    def take(self, specs: Seq[LogitsProcessorSpec]) -> list[LeasedProcessor]:
        """One sequence's own processors, to be given back.

        Raises ValueError if a spec is at fault, ProcessorError if a factory is.
        """
        leases: list[LeasedProcessor] = []
        for spec in specs:
            try:
                lease = self._take(spec)
            except (ValueError, ProcessorError):
                self.give_back(leases)
                raise
            leases.append(lease)
        return leases

    def give_back(self, leases: Seq[LeasedProcessor]) -> None:
        """Return processors to their factories, but for those that failed."""
        for lease in leases:
            if lease.has_failed:
                continue
            spec = lease.spec
            try:
                self._factories[spec.name].return_processor(lease.processor, spec.args)
            except Exception:
                logger.exception("logits processor %s cannot be used again", spec.name)

    def _take(self, spec: LogitsProcessorSpec) -> LeasedProcessor:
        factory = self._factories.get(spec.name)
        if factory is None:
            raise ValueError(f"{spec.name}: it is not installed")
        try:
            factory.validate(spec.args)
            return LeasedProcessor(spec, factory.get_processor(spec.args))
        except ValueError as error:
            raise ValueError(f"{spec.name}: {error}") from error
        except Exception as error:
            logger.exception("logits processor %s cannot be made; its sequence ends", spec.name)
            raise ProcessorError(
                f"the logits processor {spec.name} failed: {type(error).__name__}"
            ) from error


def _load_factory(entry_point: EntryPoint, context: ProcessorContext) -> LogitsProcessorFactory:
    where = f"logits processor {entry_point.name} of the package {_package(entry_point)}"
    try:
        factory = entry_point.load()(context)
    except Exception as error:  # whatever somebody's module raises
        reason = next(iter(str(error).splitlines()), "")
        raise LoadError(f"cannot load the {where}: {type(error).__name__}: {reason}") from error
    if not isinstance(factory, LogitsProcessorFactory):
        raise LoadError(
            f"the {where} is no factory: {entry_point.value} makes a {type(factory).__name__}"
        )
    return factory


def _package(entry_point: EntryPoint) -> str:
    return entry_point.dist.name if entry_point.dist is not None else entry_point.value


def _key(args: Args) -> bytes:
    return msgspec.msgpack.encode(args, order="deterministic")


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
