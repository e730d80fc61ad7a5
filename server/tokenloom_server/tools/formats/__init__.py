"""The formats in which models write calls of tools: one module each, named like the option.

A module has a function `call_format(template) -> CallFormat | None`: the format, as a chat template
with tools has it, or None if the template's model writes calls in another one. Without a template
it is the format's usual form.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from tokenloom_server.tools.call_format import CallFormat

FALLBACK = "json"
"""For models that are not trained to call tools, or in a format that is not known here."""


def format_names() -> list[str]:
    """The names of all formats."""
    return [module.name for module in pkgutil.iter_modules(__path__)]


def pick_format(option: str, template: str | None) -> CallFormat:
    """The format of this name; for `auto`, that of a model whose chat template knows tools.

    `template` is None for a model whose template does not.
    """
    if option != "auto":
        found = _read(option, template) or _read(option, None)
        assert found is not None, "a format has a usual form"
        return found
    if template is not None:
        for name in format_names():
            if name != FALLBACK and (format := _read(name, template)):
                return format
    return pick_format(FALLBACK, None)


def _read(name: str, template: str | None) -> CallFormat | None:
    format: CallFormat | None = import_module(f"{__name__}.{name}").call_format(template)
    return format
