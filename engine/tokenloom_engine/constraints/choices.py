"""The strings of a choice."""

from __future__ import annotations

import msgspec

from tokenloom_engine.constraints.base import InvalidConstraintError


def read_choices(value: str) -> list[str]:
    """Read the JSON text of a list of strings. Raise InvalidConstraintError if it is none."""
    try:
        choices = msgspec.json.decode(value)
    except msgspec.DecodeError as error:
        raise InvalidConstraintError(f"it is not JSON: {error}") from error
    if not isinstance(choices, list) or not choices:
        raise InvalidConstraintError("a choice needs at least one string")
    if not all(isinstance(choice, str) for choice in choices):
        raise InvalidConstraintError("a choice is among strings")
    return choices
