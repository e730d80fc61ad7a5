"""The libraries that compile specs: one module each, whose name is its option value.

A module, or package, has a function
`create_backend(tokenizer, config, latency) -> ConstraintBackend`.
Adding a library is adding a module; `docs/extending-constraints.md` walks through one.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from tokenloom_engine.constraints.base import ConstraintBackend, TokenizerFacts
from tokenloom_engine.constraints.config import ConstraintConfig
from tokenloom_engine.constraints.latency import Latency


def backend_names() -> list[str]:
    """The names of all back ends, whether or not their libraries are installed."""
    return [module.name for module in pkgutil.iter_modules(__path__)]


def load_backend(
    name: str,
    tokenizer: TokenizerFacts,
    config: ConstraintConfig,
    latency: Latency | None = None,
) -> ConstraintBackend:
    """Make the back end of that name. Raises ImportError, with the remedy, if it is not installed.

    The optional dependencies of a back end have its name.
    """
    try:
        module = import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        raise ImportError(f"{error.name} (pip install 'tokenloom[{name}]')") from error
    backend: ConstraintBackend = module.create_backend(tokenizer, config, latency or Latency())
    return backend
