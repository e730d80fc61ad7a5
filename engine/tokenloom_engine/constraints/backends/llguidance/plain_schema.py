"""A JSON Schema without what llguidance would refuse, or misread, for no good reason."""

from __future__ import annotations

from typing import NamedTuple

from tokenloom_engine.constraints.base import InvalidConstraintError
from tokenloom_engine.constraints.closed_names import with_closed_names
from tokenloom_engine.constraints.inert_keywords import without_inert_keywords
from tokenloom_engine.constraints.schema_patterns import (
    check_patterns,
    without_unreadable_patterns,
)


class PlainSchema(NamedTuple):
    """What is compiled in a schema's place."""

    text: str
    warnings: list[str]
    """What a lenient schema lost, one line a keyword."""


def plain_schema(schema: str, *, lenient: bool) -> PlainSchema:
    """Rewrite a schema's text. Raises InvalidConstraintError with the reason and the place."""
    schema = without_inert_keywords(schema)
    if schema.strip() == "false":
        raise InvalidConstraintError("no text matches it", "#")
    check_patterns(schema)
    warnings: list[str] = []
    if lenient:
        schema, warnings = without_unreadable_patterns(schema)
    return PlainSchema(with_closed_names(schema), warnings)
