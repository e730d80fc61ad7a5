"""From structural tags to grammars in Lark."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import msgspec

from tokenloom_engine.constraints.lark_parts import (
    LarkWriter,
    Part,
    Rule,
    Special,
    Text,
    open_end,
)
from tokenloom_engine.constraints.notation import grammar_notation
from tokenloom_engine.constraints.regex_literal import regex_literal
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.constraints.special_tokens import SpecialTokens
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
    Structures,
    Tag,
    TagsWithSeparator,
    Token,
    TriggeredTags,
    parse_structural_tag,
)
from tokenloom_engine.constraints.tag_parts import TagTexts, is_text, refusal
from tokenloom_engine.constraints.triggered_text import TriggeredTag, TriggeredText


@dataclass(frozen=True, slots=True)
class Nested:
    """A constraint in a structural tag."""

    path: str
    spec: ConstraintSpec
    name: str | None
    """By which the tag's grammar refers to it; None if it is written there."""


@dataclass(frozen=True, slots=True)
class TagGrammar:
    """The grammar of a structural tag."""

    lark: str
    nested: Seq[Nested]


def tag_grammar(spec: ConstraintSpec, special_tokens: SpecialTokens) -> TagGrammar:
    """Translate a structural tag. Raises InvalidConstraintError with the path and the reason.

    What is wrong with a nested constraint is not found here.
    """
    return _Translation(spec, special_tokens).run()


class _Translation:
    def __init__(self, spec: ConstraintSpec, special_tokens: SpecialTokens) -> None:
        self._spec = spec
        self._special_tokens = special_tokens
        self._lark = LarkWriter()
        self._texts = TagTexts(special_tokens, self._lark)
        self._triggered = TriggeredText(self._texts, self._lark)
        self._nested: list[Nested] = []

    def run(self) -> TagGrammar:
        match parse_structural_tag(self._spec.value):
            case FormatTree(format=format):
                parts = self._format("format", format)
            case Structures() as tag:
                parts = self._structures(tag)
        return TagGrammar(self._lark.grammar(parts), self._nested)

    def _structures(self, tag: Structures) -> list[Part]:
        tags = []
        for i, structure in enumerate(tag.structures):
            schema = bytes(structure.schema).decode()
            if schema.startswith('"'):
                schema = msgspec.json.decode(schema, type=str)
            content = self._json(f"structures[{i}].schema", schema)
            end = self._texts.fixed(structure.end, closes=True)
            tags.append(TriggeredTag(structure.begin, f"structures[{i}].begin", [content, *end]))
        return [self._triggered.part("structures", "triggers", tag.triggers, tags)]

    def _format(self, path: str, format: Format) -> list[Part]:
        match format:
            case ConstString(value=value):
                return self._texts.fixed(value)
            case JsonSchema():
                if format.any_order:
                    raise refusal(f"{path}.any_order", "the order is the schema's")
                schema = bytes(format.json_schema).decode()
                return [self._json(f"{path}.json_schema", schema, lenient=format.lenient)]
            case Regex(pattern=pattern):
                return self._regex(f"{path}.pattern", pattern)
            case GrammarText():
                return [self._grammar(path, format)]
            case AnyText():
                return [self._texts.free(path, format.excludes)]
            case Token():
                return [self._token(path, format)]
            case Sequence(elements=elements):
                return [part for row in self._formats(path, elements) for part in row]
            case Or(elements=elements):
                return [self._lark.one_of(self._formats(path, elements))]
            case Optional() | Star() | Plus() | Repeat():
                content = self._format(f"{path}.content", format.content)
                return [self._lark.repeat(content, _quantifier(path, format))]
            case Tag():
                return [*self._begin(path, format), *self._content_and_end(path, format)]
            case TriggeredTags():
                return [self._triggered_tags(path, format)]
            case TagsWithSeparator():
                return [self._tags_with_separator(path, format)]

    def _formats(self, path: str, elements: Seq[Format]) -> list[list[Part]]:
        return [self._format(f"{path}.elements[{i}]", format) for i, format in enumerate(elements)]

    def _token(self, path: str, token: Token) -> Part:
        id = self._special_tokens.find(token.token)
        if id is None:
            raise refusal(f"{path}.token", f"there is no special token {token.token!r}")
        return Special(id)

    def _json(self, path: str, schema: str, *, lenient: bool | None = None) -> Part:
        if schema == "true":
            schema = "{}"
        if not schema.startswith("{"):
            raise refusal(path, "a schema is an object, or true")
        spec = ConstraintSpec(
            "json_schema",
            schema,
            whitespace_pattern=self._spec.whitespace_pattern,
            lenient=self._spec.lenient if lenient is None else lenient,
        )
        return self._nest(path, spec)

    def _grammar(self, path: str, format: GrammarText) -> Part:
        notation = grammar_notation(format.grammar)
        if notation == "llguidance":
            raise refusal(f"{path}.grammar", "a grammar is in EBNF or in Lark")
        if format.syntax not in (None, "ebnf" if notation == "gbnf" else notation):
            raise refusal(f"{path}.syntax", "the grammar is in another one")
        return self._nest(f"{path}.grammar", ConstraintSpec("grammar", format.grammar))

    def _nest(self, path: str, spec: ConstraintSpec) -> Part:
        name = f"nested{len(self._nested)}"
        self._nested.append(Nested(path, spec, name))
        return Rule(f"@{name}")

    def _regex(self, path: str, pattern: str) -> list[Part]:
        if not pattern:
            return []
        self._nested.append(Nested(path, ConstraintSpec("regex", pattern), None))
        try:
            return [Text(regex_literal(pattern))]
        except ValueError as error:
            raise refusal(path, str(error)) from error

    def _begin(self, path: str, tag: Tag) -> list[Part]:
        if isinstance(tag.begin, Token):
            return [self._token(f"{path}.begin", tag.begin)]
        return self._texts.fixed(tag.begin)

    def _content_and_end(self, path: str, tag: Tag) -> list[Part]:
        content = self._format(f"{path}.content", tag.content)
        ends = self._ends(path, tag)
        if open_end(content) and [] in ends:
            raise refusal(f"{path}.end", "free text needs an end that is not empty")
        if len(ends) == 1:
            return [*content, *ends[0]]
        return [self._lark.one_of([[*content, *end] for end in ends])]

    def _ends(self, path: str, tag: Tag) -> list[list[Part]]:
        """The ends that a tag can have; those that are mere texts are one."""
        if isinstance(tag.end, Token):
            return [[self._token(f"{path}.end", tag.end)]]
        ends = [tag.end] if isinstance(tag.end, str) else tag.end
        rows = [self._texts.fixed(end, closes=True) for end in ends]
        texts = [end for end, row in zip(ends, rows, strict=True) if is_text(row)]
        others = [row for row in rows if not is_text(row)]
        return [[Text.fixed(*texts, closes=True)], *others] if texts else others

    def _triggered_tags(self, path: str, format: TriggeredTags) -> Part:
        tags = []
        for i, tag in enumerate(format.tags):
            at = f"{path}.tags[{i}]"
            if isinstance(tag.begin, Token):
                raise refusal(f"{at}.begin", "a tag that is triggered begins with a text")
            tags.append(TriggeredTag(tag.begin, f"{at}.begin", self._content_and_end(at, tag)))
        return self._triggered.part(
            path,
            f"{path}.triggers",
            format.triggers,
            tags,
            excludes=format.excludes,
            at_least_one=format.at_least_one,
            stop_after_first=format.stop_after_first,
        )

    def _tags_with_separator(self, path: str, format: TagsWithSeparator) -> Part:
        rows = [
            [*self._begin(at, tag), *self._content_and_end(at, tag)]
            for at, tag in ((f"{path}.tags[{i}]", tag) for i, tag in enumerate(format.tags))
        ]
        tag = self._lark.rule(self._lark.alternatives(rows))
        body = tag
        if not format.stop_after_first:
            body += f" ({self._lark.join([*self._texts.fixed(format.separator), Rule(tag)])})*"
        return Rule(f"({body})" if format.at_least_one else f"({body})?")


def _quantifier(path: str, format: Optional | Star | Plus | Repeat) -> str:
    match format:
        case Optional():
            return "?"
        case Star():
            return "*"
        case Plus():
            return "+"
        case Repeat(min=least, max=-1):
            return f"{{{least},}}"
        case Repeat(min=least, max=most):
            if most < least:
                raise refusal(f"{path}.max", f"{most} is less than {least}")
            return f"{{{least},{most}}}"
