"""The flags of the command line, made from the settings' fields."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from typing import Any, get_args, get_origin

from pydantic.config import JsonDict
from pydantic.fields import FieldInfo

from tokenloom_server.environment import NO_VARIABLE
from tokenloom_server.settings import Settings
from tokenloom_server.settings_error import flag_name


def add_flags(parser: argparse.ArgumentParser, *, without: Collection[str] = ()) -> None:
    """Add one flag a setting, in the settings' groups but for those in `without`.

    The values stay text: pydantic reads them, as it reads the environment's. Flags that are not
    given leave no value behind.
    """
    groups: dict[str, argparse._ArgumentGroup] = {}
    for name, field in Settings.model_fields.items():
        title = _group(field)
        if title in without:
            continue
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        groups[title].add_argument(
            *_short(field),
            f"--{flag_name(name)}",
            dest=name,
            default=argparse.SUPPRESS,
            help=_help(name, field),
            **_kind(field),
        )


def _group(field: FieldInfo) -> str:
    return str(_extra(field)["group"])


def _short(field: FieldInfo) -> list[str]:
    short = _extra(field)["short"]
    return [f"-{short}"] if short else []


def _extra(field: FieldInfo) -> JsonDict:
    extra = field.json_schema_extra
    if not isinstance(extra, dict):
        raise TypeError("every setting is made by flag()")
    return extra


def _kind(field: FieldInfo) -> dict[str, Any]:
    if field.annotation is bool:
        return {"action": "store_const", "const": "true"}
    if get_origin(field.annotation) is tuple:
        return {"action": "append", "metavar": "VALUE"}
    return {"metavar": _metavar(field)}


def _metavar(field: FieldInfo) -> str:
    """The type in capitals, or the choices."""
    types: tuple[Any, ...] = get_args(field.annotation) or (field.annotation,)
    if all(isinstance(kind, str) for kind in types):
        return "{" + ",".join(types) + "}"
    return {int: "N", float: "X"}.get(types[0], "TEXT")


def _help(name: str, field: FieldInfo) -> str:
    shown = isinstance(field.default, str | int | float) and field.default is not False
    default = f" (default: {field.default})" if shown else ""
    variable = "" if name in NO_VARIABLE else f" [{name.upper()}]"
    return f"{field.description}{default}{variable}".replace("%", "%%")
