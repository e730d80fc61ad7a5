"""What JSON Schemas say of numbers, in xgrammar's words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, floor

from tokenloom_engine.constraints.backends.xgrammar.document import Json, Schema, named_types
from tokenloom_engine.constraints.backends.xgrammar.keywords import OF_NUMBERS, of_type
from tokenloom_engine.constraints.backends.xgrammar.notes import Notes
from tokenloom_engine.constraints.subschema import Path

MAX_MULTIPLE_OF = 1024
MAX_RANGE_OF_MULTIPLES = 10_000
"""Beyond these the library drops `multipleOf`."""

ROUND: Mapping[str, Callable[[float], int]] = {
    "minimum": ceil,
    "exclusiveMinimum": floor,
    "maximum": floor,
    "exclusiveMaximum": ceil,
}


def translate_number(schema: Schema, at: Path, notes: Notes) -> Schema:
    """Bounds, and what they are multiples of. With `multipleOf`, the numbers are integers."""
    own = of_type(schema, OF_NUMBERS)
    for bound in ("Minimum", "Maximum"):  # as they were in draft 4
        is_exclusive = own.get(f"exclusive{bound}")
        if isinstance(is_exclusive, bool):
            del own[f"exclusive{bound}"]
        if is_exclusive is True and bound.lower() in own:
            own[f"exclusive{bound}"] = own.pop(bound.lower())
    if "multipleOf" in own:
        _multiple_of(own, at, notes)
    if are_integers(schema):
        own = {key: _whole_bound(key, value) for key, value in own.items()}
    return own


def are_integers(schema: Schema) -> bool:
    """Whether its type says so."""
    return "type" in schema and "fraction" not in named_types(schema["type"])


def _multiple_of(own: Schema, at: Path, notes: Notes) -> None:
    """Keep it in those cases in which xgrammar does not drop it."""
    multiple = own["multipleOf"]
    bounds = own.keys() - {"multipleOf"}
    is_narrow = {"minimum", "maximum"} <= bounds and (
        own["maximum"] - own["minimum"] < MAX_RANGE_OF_MULTIPLES
    )
    if not float(multiple).is_integer() or not 1 <= multiple <= MAX_MULTIPLE_OF:
        reason = f"{multiple}"
    elif bounds and not is_narrow:
        reason = "beside these bounds"
    else:
        own["multipleOf"] = int(multiple)
        return
    notes.leave_out("multipleOf", at, reason)
    del own["multipleOf"]


def _whole_bound(keyword: str, value: Json) -> Json:
    """The bound that means the same for integers."""
    return ROUND[keyword](value) if keyword in ROUND else value
