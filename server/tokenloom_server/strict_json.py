"""JSON as the standard has it: no NaN, no doubled key, UTF-8 only; no number is infinite."""

from __future__ import annotations

import json
from collections import Counter
from math import isinf
from typing import Any

from tokenloom_server.json_body import MALFORMED, WRONG_SHAPE, BodyError

MAX_SHOWN_DIGITS = 40


def parse_object(body: bytes) -> dict[str, Any]:
    """The parsed body, an object. Raises BodyError."""
    try:
        value = json.loads(
            body.decode(),
            object_pairs_hook=_without_doubles,
            parse_int=_integer,
            parse_float=_number,
            parse_constant=_no_constant,
        )
    except RecursionError:
        raise BodyError(400, MALFORMED + "nested too deeply") from None
    except ValueError as error:
        raise BodyError(400, MALFORMED + _reason(error)) from None
    if not isinstance(value, dict):
        raise BodyError(422, WRONG_SHAPE + "expected an object")
    return value


def parse_value(text: str) -> object:
    """A JSON text that stands in a body; it may have doubled keys. Raises ValueError."""
    return json.loads(text, parse_float=_number, parse_constant=_no_constant)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise BodyError(422, f"{WRONG_SHAPE}duplicate field `{counts.most_common(1)[0][0]}`")
    return fields


# The parser is native code, and keeps Python's lock but for the functions that it calls: these let
# other threads go on while a long list is read.
def _integer(digits: str) -> int:
    return int(digits)


def _number(digits: str) -> float:
    number = float(digits)
    if isinf(number):  # what writes JSON again would make null of it
        raise ValueError(f"the number {digits[:MAX_SHOWN_DIGITS]} is out of range")
    return number


def _no_constant(word: str) -> float:
    raise ValueError(f"{word} is not JSON")


def _reason(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at line {error.lineno} column {error.colno}"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 at byte {error.start}"
    return str(error)
