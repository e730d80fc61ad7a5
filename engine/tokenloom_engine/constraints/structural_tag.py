"""What a structural tag says: free text with constrained parts, as JSON describes it.

There are two forms. The older one lists `structures`, JSON between a `begin` and an `end`, and the
`triggers` that lead to them. The newer one is a tree of formats. Fields and their meaning are
XGrammar's; what we do not do is refused by name.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw

from tokenloom_engine.constraints.base import InvalidConstraintError

PATH = re.compile(r"(?P<reason>.*) - at `\$\.(?P<path>.*)`")
"""How msgspec says what is wrong and where."""

NonEmpty = Annotated[str, Meta(min_length=1)]
Strings = tuple[NonEmpty, ...]
Nothing = Annotated[tuple[str, ...], Meta(max_length=0)]


class Form(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON object with these fields and no others."""


class ConstString(Form, frozen=True, tag="const_string"):
    """A given text."""

    value: str


class JsonSchema(Form, frozen=True, tag="json_schema"):
    """JSON that a JSON Schema describes."""

    json_schema: Raw
    lenient: bool | None = None
    """`ConstraintSpec.lenient` of this schema alone; None is the tag's. Not among XGrammar's."""
    style: Literal["json"] = "json"
    any_order: bool = False
    max_whitespace_cnt: None = None
    excludes: Nothing = ()


class Regex(Form, frozen=True, tag="regex"):
    """Text that matches a regular expression."""

    pattern: str


class GrammarText(Form, frozen=True, tag="grammar"):
    """A sentence of a grammar."""

    grammar: str
    syntax: Literal["ebnf", "lark"] | None = None
    """None: told apart by the grammar's text."""


class AnyText(Form, frozen=True, tag="any_text"):
    """Text of any kind, up to the text that must follow."""

    excludes: Strings = ()
    max_chars: None = None
    max_tokens: None = None


class Token(Form, frozen=True, tag="token"):
    """A special token, by its id or its name."""

    token: int | str


class Sequence(Form, frozen=True, tag="sequence"):
    """One after the other."""

    elements: Annotated[tuple[Format, ...], Meta(min_length=1)]


class Or(Form, frozen=True, tag="or"):
    """One of them."""

    elements: Annotated[tuple[Format, ...], Meta(min_length=1)]


class Optional(Form, frozen=True, tag="optional"):
    """Once or not at all."""

    content: Format


class Star(Form, frozen=True, tag="star"):
    """Any number of times."""

    content: Format


class Plus(Form, frozen=True, tag="plus"):
    """At least once."""

    content: Format


class Repeat(Form, frozen=True, tag="repeat"):
    """At least `min` times and at most `max` times; a `max` of -1 is no limit."""

    min: Annotated[int, Meta(ge=0)]
    max: Annotated[int, Meta(ge=-1)]
    content: Format


class Tag(Form, frozen=True, tag="tag"):
    """A content between a begin and the first text that ends it."""

    begin: str | Token
    content: Format
    end: str | Annotated[tuple[str, ...], Meta(min_length=1)] | Token


class TriggeredTags(Form, frozen=True, tag="triggered_tags"):
    """Free text in which, behind a trigger, the rest of a tag must follow."""

    triggers: Annotated[Strings, Meta(min_length=1)]
    tags: Annotated[tuple[Tag, ...], Meta(min_length=1)]
    at_least_one: bool = False
    """The text begins with a tag."""
    stop_after_first: bool = False
    excludes: Strings = ()


class TagsWithSeparator(Form, frozen=True, tag="tags_with_separator"):
    """Tags, a separator between them, and no other text."""

    tags: Annotated[tuple[Tag, ...], Meta(min_length=1)]
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False


Format = (
    ConstString
    | JsonSchema
    | Regex
    | GrammarText
    | AnyText
    | Token
    | Sequence
    | Or
    | Optional
    | Star
    | Plus
    | Repeat
    | Tag
    | TriggeredTags
    | TagsWithSeparator
)


class FormatTree(Form, frozen=True):
    """The newer form."""

    format: Format
    type: Literal["structural_tag"] = "structural_tag"


class Structure(Form, frozen=True):
    """JSON between two texts."""

    begin: str
    schema: Raw
    """An object, or its text as a string."""
    end: str


class Structures(Form, frozen=True):
    """The older form."""

    structures: Annotated[tuple[Structure, ...], Meta(min_length=1)]
    triggers: Annotated[Strings, Meta(min_length=1)]
    type: Literal["structural_tag"] = "structural_tag"


def parse_structural_tag(text: str) -> FormatTree | Structures:
    """Read a structural tag's JSON text. Raises InvalidConstraintError with a path and a reason."""
    try:
        is_tree = "structures" not in msgspec.json.decode(text, type=dict[str, Raw])
        return msgspec.json.decode(text, type=FormatTree if is_tree else Structures)
    except msgspec.ValidationError as error:
        raise _refusal(str(error)) from error
    except msgspec.DecodeError as error:
        raise InvalidConstraintError(f"it is not JSON: {error}") from error


def _refusal(message: str) -> InvalidConstraintError:
    found = PATH.fullmatch(message)
    if found is None:
        return InvalidConstraintError(message)
    reason = found["reason"]
    return InvalidConstraintError(f"{found['path']}: {reason[0].lower()}{reason[1:]}")
