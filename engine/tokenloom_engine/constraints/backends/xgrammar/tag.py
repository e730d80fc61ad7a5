"""Structural tags as xgrammar reads them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import msgspec

from tokenloom_engine.constraints.base import InvalidConstraintError
from tokenloom_engine.constraints.notation import grammar_notation
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.constraints.structural_tag import (
    AnyText,
    ConstString,
    Format,
    FormatTree,
    GrammarText,
    JsonSchema,
    Optional,
    Or,
    Plus,
    Regex,
    Repeat,
    Sequence,
    Star,
    Structure,
    Structures,
    Tag,
    TagsWithSeparator,
    Token,
    TriggeredTags,
    parse_structural_tag,
)

Json = dict[str, Any]
Nest = Callable[[str, ConstraintSpec], Json]
"""Makes a format of a constraint within a tag, from the path to it and its spec."""


def translate_tag(spec: ConstraintSpec, special_tokens: Collection[str], nest: Nest) -> Json:
    """The format tree of a structural tag. Raises InvalidConstraintError with path and reason.

    Special tokens are refused: where the library knows them, it takes them for text as well.
    """
    return _Translation(spec, special_tokens, nest).run()


class _Translation:
    def __init__(self, spec: ConstraintSpec, special_tokens: Collection[str], nest: Nest) -> None:
        self._spec = spec
        self._special_tokens = special_tokens
        self._nest = nest

    def run(self) -> Json:
        match parse_structural_tag(self._spec.value):
            case FormatTree(format=format):
                tree = self._format("format", format)
            case Structures() as tag:
                tree = self._structures(tag)
        return {"type": "structural_tag", "format": tree}

    def _structures(self, tag: Structures) -> Json:
        tags = [self._structure(f"structures[{i}]", one) for i, one in enumerate(tag.structures)]
        triggers = [self._text("triggers", trigger) for trigger in tag.triggers]
        return {"type": "triggered_tags", "triggers": triggers, "tags": tags}

    def _structure(self, path: str, structure: Structure) -> Json:
        schema = bytes(structure.schema).decode()
        if schema.startswith('"'):
            schema = msgspec.json.decode(schema, type=str)
        return {
            "type": "tag",
            "begin": self._text(f"{path}.begin", structure.begin),
            "content": self._json(f"{path}.schema", schema),
            "end": self._text(f"{path}.end", structure.end),
        }

    def _format(self, path: str, format: Format) -> Json:
        match format:
            case ConstString(value=value):
                return {"type": "const_string", "value": self._text(f"{path}.value", value)}
            case JsonSchema():
                if format.any_order:
                    raise _refusal(f"{path}.any_order", "the order is the schema's")
                schema = bytes(format.json_schema).decode()
                return self._json(f"{path}.json_schema", schema, lenient=format.lenient)
            case Regex(pattern=pattern):
                return self._nest(f"{path}.pattern", ConstraintSpec("regex", pattern))
            case GrammarText():
                return self._grammar(path, format)
            case AnyText():
                return {"type": "any_text", "excludes": list(format.excludes)}
            case Token(token=token):
                raise _special(path, token)
            case Sequence() | Or():
                kind = "or" if isinstance(format, Or) else "sequence"
                return {"type": kind, "elements": self._formats(path, format.elements)}
            case Optional() | Star() | Plus():
                content = self._format(f"{path}.content", format.content)
                return {"type": type(format).__name__.lower(), "content": content}
            case Repeat(min=least, max=most, content=content):
                repeated = self._format(f"{path}.content", content)
                return {"type": "repeat", "min": least, "max": most, "content": repeated}
            case Tag():
                return self._tag(path, format)
            case TriggeredTags():
                return self._triggered_tags(path, format)
            case TagsWithSeparator():
                return {
                    "type": "tags_with_separator",
                    "tags": self._tags(path, format.tags),
                    "separator": self._text(f"{path}.separator", format.separator),
                    "at_least_one": format.at_least_one,
                    "stop_after_first": format.stop_after_first,
                }

    def _formats(self, path: str, elements: tuple[Format, ...]) -> list[Json]:
        return [self._format(f"{path}.elements[{i}]", one) for i, one in enumerate(elements)]

    def _triggered_tags(self, path: str, format: TriggeredTags) -> Json:
        return {
            "type": "triggered_tags",
            "triggers": [self._text(f"{path}.triggers", one) for one in format.triggers],
            "tags": self._tags(path, format.tags),
            "at_least_one": format.at_least_one,
            "stop_after_first": format.stop_after_first,
            "excludes": list(format.excludes),
        }

    def _tags(self, path: str, tags: tuple[Tag, ...]) -> list[Json]:
        return [self._tag(f"{path}.tags[{i}]", tag) for i, tag in enumerate(tags)]

    def _tag(self, path: str, tag: Tag) -> Json:
        return {
            "type": "tag",
            "begin": self._edge(f"{path}.begin", tag.begin),
            "content": self._format(f"{path}.content", tag.content),
            "end": [self._text(f"{path}.end", one) for one in tag.end]
            if isinstance(tag.end, tuple)
            else self._edge(f"{path}.end", tag.end),
        }

    def _edge(self, path: str, edge: str | Token) -> str:
        if isinstance(edge, Token):
            raise _special(path, edge.token)
        return self._text(path, edge)

    def _text(self, path: str, text: str) -> str:
        for name in self._special_tokens:
            if name in text:
                raise _special(path, name)
        return text

    def _json(self, path: str, schema: str, *, lenient: bool | None = None) -> Json:
        spec = ConstraintSpec(
            "json_schema",
            schema,
            whitespace_pattern=self._spec.whitespace_pattern,
            lenient=self._spec.lenient if lenient is None else lenient,
        )
        return self._nest(path, spec)

    def _grammar(self, path: str, format: GrammarText) -> Json:
        notation = grammar_notation(format.grammar)
        if format.syntax not in (None, "ebnf" if notation == "gbnf" else notation):
            raise _refusal(f"{path}.syntax", "the grammar is in another one")
        return self._nest(f"{path}.grammar", ConstraintSpec("grammar", format.grammar))


def _refusal(path: str, reason: str) -> InvalidConstraintError:
    return InvalidConstraintError(f"{path}: {reason}")


def _special(path: str, token: str | int) -> InvalidConstraintError:
    return _refusal(
        path,
        f"special tokens such as {token!r} need llguidance: the server's flag is "
        "--constraint-backend structural_tag=llguidance",
    )
