"""Numbers of a JSON Schema that llguidance, which computes with doubles, enforces exactly.

The library reads each number as a double, and an integer's bounds as signed 64-bit integers made of
doubles. What is left of a number on this way must be the number that the schema has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import NamedTuple, TypeGuard

INT64_MAX = 2**63 - 1
LEAST = -(2**63) + 1024
"""The double above int64's least integer, at which the library's process ends."""
DOUBLE_INTEGERS = 2**53
"""Below, doubles tell all integers apart."""
MAX_DIGITS = 400
"""Of an integer: no double has more."""
UINT32_MAX = 2**32 - 1
UINT64_MAX = 2**64 - 1
MAX_EXPONENT = 308
BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
REMEDY = "leave it out, or describe the value as a string with a `pattern`"


class DoubleLiteral(float):
    """A number with a fraction or an exponent, and the exact value that its text has."""

    text: str
    exact: Decimal

    def __new__(cls, text: str) -> DoubleLiteral:
        """Parse a number's text; one that no double can hold is infinite."""
        number = super().__new__(cls, text)
        number.text = text
        try:
            number.exact = Decimal(text)
        except InvalidOperation:  # its exponent has too many digits
            number.exact = Decimal("NaN")
        return number


Number = int | DoubleLiteral


class InexactNumberError(ValueError):
    """The library cannot enforce a number exactly."""

    def __init__(self, keyword: str, number: Number) -> None:
        super().__init__(f"{shown(number)} cannot be enforced exactly: {REMEDY}")
        self.keyword = keyword
        self.number = number


class Bounds(NamedTuple):
    """The bounds of an integer, in place of those that the schema has."""

    keywords: dict[str, int]
    raised: str | None
    """The keyword whose bound is higher now, if one is."""


def is_number(value: object) -> TypeGuard[Number]:
    """Whether a parsed JSON value is a number."""
    return isinstance(value, (int, DoubleLiteral)) and not isinstance(value, bool)


def shown(number: Number) -> str:
    """The number as text."""
    return number.text if isinstance(number, DoubleLiteral) else str(number)


def check_literal(keyword: str, number: Number) -> None:
    """Raise InexactNumberError if the library would write another number."""
    if isinstance(number, DoubleLiteral):
        is_exact = _survives(number) and abs(number) < 2**63
    else:
        is_exact = number == INT64_MAX or (number >= LEAST and _is_double(number))
    if not is_exact:
        raise InexactNumberError(keyword, number)


def exact_bounds(schema: Mapping[str, object], *, is_integer: bool) -> Bounds | None:
    """Find bounds that say the same to the library; None if those of the schema do.

    `is_integer`: whether the schema allows no other numbers. Raises InexactNumberError.
    """
    bounds: dict[str, Number] = {
        key: value for key in BOUNDS if is_number(value := schema.get(key))
    }
    inexact = [key for key, value in bounds.items() if not _is_small(value)]
    if not inexact:
        return None
    if is_integer:
        return _integer_bounds(schema, bounds)
    for key in inexact:
        number = bounds[key]
        if key.startswith("exclusive") or schema.get(f"exclusive{key.capitalize()}") is True:
            raise InexactNumberError(key, number)
        is_exact = _survives(number) and _exact(number) == Decimal(float(number))
        if not is_exact or abs(number) >= 2**63:
            raise InexactNumberError(key, number)
    return None


def check_multiples(numbers: Iterable[Number], *, are_joined: bool) -> None:
    """Raise InexactNumberError if the library would take others for multiples of one of these.

    `are_joined`: whether a number may have to be a multiple of several.
    """
    fractions = [(number, *_fraction(number)) for number in numbers]
    for number, coefficient, exponent in fractions:
        # how the library goes on from digit to digit, in 32 bits
        if coefficient > 1 and 10 * coefficient + 9 * 10**exponent > UINT32_MAX:
            raise InexactNumberError("multipleOf", number)
    if not are_joined:
        return
    most = max((exponent for *_, exponent in fractions), default=0)
    scaled = {coefficient * 10 ** (most - exponent) for _, coefficient, exponent in fractions}
    largest = sorted(scaled)[-2:]
    if len(largest) > 1 and max(math.prod(largest), 10 * math.lcm(*scaled)) > UINT32_MAX:
        raise InexactNumberError("multipleOf", max(numbers))


def _integer_bounds(schema: Mapping[str, object], bounds: Mapping[str, Number]) -> Bounds:
    least, most = _inclusive(schema, bounds)
    keywords: dict[str, int] = {}
    raised = None
    if least is not None:
        lower = max(("minimum", "exclusiveMinimum"), key=lambda key: bounds.get(key, -math.inf))
        number = bounds[lower]
        if least == -(2**63):
            least, raised = LEAST, lower
        is_exact = LEAST <= least < INT64_MAX and _is_double(least)
        if not is_exact or (most is None and least >= 10**18):
            raise InexactNumberError(lower, number)
        keywords["minimum"] = least
    if most is not None:
        upper = min(("maximum", "exclusiveMaximum"), key=lambda key: bounds.get(key, math.inf))
        is_exact = most == INT64_MAX or (LEAST < most < INT64_MAX and _is_double(most))
        if not is_exact or (least is None and most <= -(10**18)):
            raise InexactNumberError(upper, bounds[upper])
        keywords["maximum"] = most
    return Bounds(keywords, raised)


def _inclusive(
    schema: Mapping[str, object], bounds: Mapping[str, Number]
) -> tuple[int | None, int | None]:
    """The least and the greatest integer."""
    least: list[int] = []
    most: list[int] = []
    for key, number in bounds.items():
        exact = _exact(number)
        if not exact.is_finite() or exact.adjusted() > MAX_DIGITS:
            raise InexactNumberError(key, number)
        is_exclusive = key not in ("minimum", "maximum")
        is_exclusive |= schema.get(f"exclusive{key.capitalize()}") is True  # draft 4
        if key.endswith("inimum"):
            least.append(math.floor(exact) + 1 if is_exclusive else math.ceil(exact))
        else:
            most.append(math.ceil(exact) - 1 if is_exclusive else math.floor(exact))
    return max(least, default=None), min(most, default=None)


def _exact(number: Number) -> Decimal:
    return number.exact if isinstance(number, DoubleLiteral) else Decimal(number)


def _survives(number: Number) -> bool:
    """Whether the double that the library reads has a text that means the number.

    Of a small fraction, its double is meant, as all readers of JSON take it.
    """
    try:
        double = float(number)
    except OverflowError:
        return False
    texts = {number.text, repr(double)} if isinstance(number, DoubleLiteral) else {str(number)}
    is_fraction = bool(double % 1) and abs(double) < DOUBLE_INTEGERS
    is_meant = is_fraction or Decimal(repr(double)) == _exact(number)
    return is_meant and all(_read(text) == double for text in texts)


def _read(text: str) -> float:
    """A number as serde_json reads it: its first digits as a double, times a power of ten."""
    parts = Decimal(text).as_tuple()
    exponent = int(parts.exponent)
    significand = 0
    for at, digit in enumerate(parts.digits):
        if significand * 10 + digit > UINT64_MAX:
            exponent += len(parts.digits) - at
            break
        significand = significand * 10 + digit
    value = float(significand)
    if exponent < -MAX_EXPONENT:
        value, exponent = value / 10.0**MAX_EXPONENT, max(exponent + MAX_EXPONENT, -MAX_EXPONENT)
    if exponent > MAX_EXPONENT:
        return math.inf
    value = value * float(f"1e{exponent}") if exponent >= 0 else value / float(f"1e{-exponent}")
    return -value if parts.sign else value


def _is_double(number: int) -> bool:
    return abs(number) < 2**63 and int(float(number)) == number


def _is_small(number: Number) -> bool:
    return abs(number) < DOUBLE_INTEGERS and _survives(number)


def _fraction(number: Number) -> tuple[int, int]:
    """The number as the library has it: a whole number, and by how many tens it is divided.

    Raises InexactNumberError if that is another number.
    """
    value, exponent = float(min(abs(number), 2**64)), 0
    while value % 1:
        value, exponent = value * 10, exponent + 1
    if value > UINT32_MAX or float(Decimal(int(value)).scaleb(-exponent)) != abs(number):
        raise InexactNumberError("multipleOf", number)
    coefficient = int(value)
    while exponent and coefficient % 10 == 0:
        coefficient, exponent = coefficient // 10, exponent - 1
    return coefficient, exponent
