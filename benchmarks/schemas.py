"""JSON schemas that the benchmarks constrain output by. All their values are of bounded length."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def record(**properties: Schema) -> Schema:
    """An object that has exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def text(max_length: int) -> Schema:
    """Any string up to a length."""
    return {"type": "string", "maxLength": max_length}


def matching(pattern: str) -> Schema:
    """A string of a form."""
    return {"type": "string", "pattern": pattern}


def whole(minimum: int, maximum: int) -> Schema:
    """An integer between two."""
    return {"type": "integer", "minimum": minimum, "maximum": maximum}


def one_of(*values: str) -> Schema:
    """One of some strings."""
    return {"enum": list(values)}


def items(schema: Schema, minimum: int, maximum: int) -> Schema:
    """An array of between two numbers of equal things."""
    return {"type": "array", "items": schema, "minItems": minimum, "maxItems": maximum}


YES_OR_NO: Schema = {"type": "boolean"}

PERSON = record(
    full_name=text(24),
    age_in_years=whole(0, 120),
    email_address=matching(r"^[a-z]{3,10}@[a-z]{3,8}\.com$"),
    favourite_colour=one_of("red", "green", "blue", "yellow"),
    is_active_member=YES_OR_NO,
)

ORDER = record(
    order_number=matching("^[A-Z]{2}-[0-9]{4}$"),
    lines=items(record(article=text(16), quantity=whole(1, 9), cents=whole(1, 99999)), 1, 2),
    express=YES_OR_NO,
)

ADDRESS = record(
    recipient=text(20),
    place=record(street=text(20), number=whole(1, 400), town=text(16)),
    postcode=matching("^[0-9]{5}$"),
    country=one_of("Chile", "Ghana", "Japan", "Norway"),
)

APPOINTMENT = record(
    title=text(30),
    day=matching("^20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9])$"),
    minutes=whole(5, 480),
    guests=items(text(12), 1, 3),
)

CALL: Schema = {
    "anyOf": [
        record(tool=one_of("weather"), arguments=record(town=text(16), days=whole(1, 7))),
        record(tool=one_of("search"), arguments=record(query=text(30), newest_first=YES_OR_NO)),
    ]
}

REVIEW = record(
    rating=whole(1, 5),
    verdict=one_of("excellent", "good", "mixed", "poor"),
    praise=items(text(24), 0, 2),
    would_return=YES_OR_NO,
)

GRID = record(name=text(12), cells=items(items(whole(0, 9), 3, 3), 3, 3))

SHELF: Schema = {
    **record(
        label=text(12), left={"$ref": "#/$defs/box"}, right={"$ref": "#/$defs/box"}, full=YES_OR_NO
    ),
    "$defs": {"box": record(content=text(14), count=whole(0, 99))},
}

MIXED = (PERSON, ORDER, ADDRESS, APPOINTMENT, CALL, REVIEW, GRID, SHELF)
