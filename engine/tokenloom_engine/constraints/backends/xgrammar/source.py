"""What xgrammar is given to compile: specs, read and checked."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from tokenloom_engine.constraints.backends.xgrammar.ebnf import literal, one_of
from tokenloom_engine.constraints.backends.xgrammar.json_schema import translate_json_schema
from tokenloom_engine.constraints.backends.xgrammar.regex import Regex, RegexError
from tokenloom_engine.constraints.backends.xgrammar.tag import Json, translate_tag
from tokenloom_engine.constraints.base import InvalidConstraintError
from tokenloom_engine.constraints.inert_keywords import without_inert_keywords
from tokenloom_engine.constraints.notation import grammar_notation
from tokenloom_engine.constraints.spec import ConstraintSpec

MAX_LENGTH = 50_000
"""Of a regular expression, a choice or a grammar: from about 70,000 states on, compiling an
automaton takes minutes, and nothing can interrupt it."""
ANY_TEXT = r"root ::= [\0-\U0010FFFF]*"

WHITE_SPACE = re.compile(
    r"(?:\\s|\[(?:\\s|(?=[^\]]* )(?=[^\]]*\\n)(?=[^\]]*\\r)(?=[^\]]*\\t)(?: |\\[nrt]){4})\])"
    r"(?:(?P<any>\*)|\?|\{0,(?P<most>[1-9][0-9]{0,2})\})"
)
"""The patterns of white space that xgrammar can do: any of it, or up to so many characters."""


@dataclass(frozen=True, slots=True)
class Source:
    """A spec, ready to be compiled."""

    notation: Literal["json", "ebnf", "lark", "tag"]
    text: str
    """In that notation; of a tag, empty."""
    prefix: str = ""
    max_whitespace: float = 0
    """JSON: how many characters of white space may stand between the parts."""
    patterns: tuple[str, ...] = ()
    """JSON: what the patterns are, in EBNF, that it calls `pattern_name(index)`."""
    tag: ConstraintSpec | None = None
    nested: tuple[Source, ...] = ()
    """Of a tag: the constraints in it, in its order."""
    warnings: tuple[str, ...] = ()


class SourceReader:
    """Reads specs."""

    def __init__(self, special_tokens: Collection[str]) -> None:
        """`special_tokens` are the names of the tokens that are no text."""
        self._special_tokens = special_tokens

    def read(self, spec: ConstraintSpec) -> Source:
        """Raises InvalidConstraintError."""
        return replace(self._read(spec), prefix=spec.prefix)

    def _read(self, spec: ConstraintSpec) -> Source:
        match spec.kind:
            case "json_schema":
                return _json(spec.value, spec)
            case "json_object":
                return _json('{"type": "object"}', spec)
            case "regex":
                return Source("ebnf", _regex(spec.value))
            case "choice":
                return Source("ebnf", _choice(spec.value))
            case "grammar":
                return _grammar(spec.value)
            case "structural_tag":
                return self._tag(spec)
            case "text":
                return Source("ebnf", ANY_TEXT)

    def _tag(self, spec: ConstraintSpec) -> Source:
        nested: list[Source] = []
        warnings: list[str] = []

        def nest(path: str, inner: ConstraintSpec) -> Json:
            try:
                nested.append(self.read(inner))
            except InvalidConstraintError as error:
                raise InvalidConstraintError(f"{path}: {error.reason}", error.place) from error
            warnings.extend(f"{path}: {warning}" for warning in nested[-1].warnings)
            return {}

        translate_tag(spec, self._special_tokens, nest)
        return Source("tag", "", tag=spec, nested=tuple(nested), warnings=tuple(warnings))


def _json(schema: str, spec: ConstraintSpec) -> Source:
    translation = translate_json_schema(without_inert_keywords(schema), lenient=spec.lenient)
    return Source(
        "json",
        json.dumps(translation.schema),
        max_whitespace=_max_whitespace(spec.whitespace_pattern),
        patterns=tuple(translation.patterns),
        warnings=tuple(translation.warnings),
    )


def _choice(value: str) -> str:
    try:
        choices = json.loads(value)
    except json.JSONDecodeError as error:
        raise InvalidConstraintError(f"it is not JSON: {error}") from error
    if not isinstance(choices, list) or not choices:
        raise InvalidConstraintError("a choice needs at least one string")
    if not all(isinstance(choice, str) for choice in choices):
        raise InvalidConstraintError("a choice is among strings")
    _check_length("".join(choices))
    return f"root ::= {one_of(map(literal, choices))}"


def _regex(pattern: str) -> str:
    _check_length(pattern)
    try:
        return f"root ::= {Regex(pattern).whole}"
    except RegexError as error:
        raise InvalidConstraintError(f"xgrammar cannot read it: {error}") from error


def _grammar(text: str) -> Source:
    notation = grammar_notation(text)
    if notation == "llguidance" or "%llguidance" in text:
        raise InvalidConstraintError(
            "%llguidance grammars need llguidance: the server's flag is "
            "--constraint-backend grammar=llguidance"
        )
    _check_length(text)
    if "(?=" in text or "(?!" in text:
        raise InvalidConstraintError("look-ahead is not supported")
    return Source("ebnf" if notation == "gbnf" else "lark", text)


def _check_length(text: str) -> None:
    if len(text.encode()) > MAX_LENGTH:
        raise InvalidConstraintError(f"it is longer than {MAX_LENGTH} bytes")


def _max_whitespace(pattern: str | None) -> float:
    if pattern is None:
        return 0
    found = WHITE_SPACE.fullmatch(pattern)
    if found is None:
        raise InvalidConstraintError(
            f"xgrammar cannot do whitespace_pattern {pattern!r}, only patterns such as "
            r"[ \n\r\t]{0,2}; llguidance can: the server's flag is "
            "--constraint-backend json_schema=llguidance"
        )
    if found["any"]:
        return inf
    return int(found["most"] or 1)
