"""The logits processors that are installed, and who has them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from importlib.metadata import EntryPoint, entry_points

from tokenloom_engine.errors import LoadError
from tokenloom_engine.logits_processors.base import (
    LogitsProcessorFactory,
    ProcessorContext,
    ProcessorError,
)
from tokenloom_engine.logits_processors.lease import LeasedProcessor
from tokenloom_engine.messages import LogitsProcessorSpec

logger = logging.getLogger(__name__)

GROUP = "tokenloom.logits_processors"
"""The entry points are callables that take a ProcessorContext and return a factory."""


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
