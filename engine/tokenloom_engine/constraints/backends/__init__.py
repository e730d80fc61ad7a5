"""The libraries that compile specs: one module each, whose name is its option value.

A module has a function `create_backend(tokenizer, config) -> ConstraintBackend`. Adding a library
is adding a module; `docs/extending-constraints.md` walks through one.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from tokenloom_engine.constraints.base import ConstraintBackend, TokenizerFacts
from tokenloom_engine.constraints.config import ConstraintConfig


def backend_names() -> list[str]:
    """The names of all back ends, whether or not their libraries are installed."""
    return [module.name for module in pkgutil.iter_modules(__path__)]


def load_backend(
    name: str, tokenizer: TokenizerFacts, config: ConstraintConfig
) -> ConstraintBackend:
    """Make the back end of that name. Raises ImportError if its library is not installed."""
    module = import_module(f"{__name__}.{name}")
    backend: ConstraintBackend = module.create_backend(tokenizer, config)
    return backend
