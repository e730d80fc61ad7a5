"""From structural tags to grammars in Lark."""

from __future__ import annotations

import re
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import msgspec

from tokenloom_engine.constraints.base import InvalidConstraintError
from tokenloom_engine.constraints.lark_parts import (
    ANY,
    LarkWriter,
    OpenRule,
    Part,
    Rule,
    Special,
    Text,
    open_end,
)
from tokenloom_engine.constraints.notation import grammar_notation
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

TO_ESCAPE = re.compile(r"\\.|[/\n\r]", re.DOTALL)
ESCAPED = {"/": r"\/", "\n": r"\n", "\\\n": r"\n", "\r": r"\r", "\\\r": r"\r"}


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


@dataclass(frozen=True, slots=True)
class Triggered:
    """A tag that a trigger leads to."""

    begin: str
    begin_at: str
    rest: Seq[Part]
    """Its content and its end."""


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
            end = self._fixed(structure.end, closes=True)
            tags.append(Triggered(structure.begin, f"structures[{i}].begin", [content, *end]))
        return [self._triggered("structures", "triggers", tag.triggers, tags)]

    def _format(self, path: str, format: Format) -> list[Part]:
        match format:
            case ConstString(value=value):
                return self._fixed(value)
            case JsonSchema():
                if format.any_order:
                    raise _refusal(f"{path}.any_order", "the order is the schema's")
                return [self._json(f"{path}.json_schema", bytes(format.json_schema).decode())]
            case Regex(pattern=pattern):
                return self._regex(f"{path}.pattern", pattern)
            case GrammarText():
                return [self._grammar(path, format)]
            case AnyText():
                return [self._any_text(path, format.excludes)]
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

    def _fixed(self, text: str, *, closes: bool = False) -> list[Part]:
        return [
            Text.fixed(piece, closes=closes) if isinstance(piece, str) else Special(piece)
            for piece in self._special_tokens.split(text)
        ]

    def _token(self, path: str, token: Token) -> Part:
        id = self._special_tokens.find(token.token)
        if id is None:
            raise _refusal(f"{path}.token", f"there is no special token {token.token!r}")
        return Special(id)

    def _json(self, path: str, schema: str) -> Part:
        if schema == "true":
            schema = "{}"
        if not schema.startswith("{"):
            raise _refusal(path, "a schema is an object, or true")
        spec = ConstraintSpec(
            "json_schema",
            schema,
            whitespace_pattern=self._spec.whitespace_pattern,
            lenient=self._spec.lenient,
        )
        return self._nest(path, spec)

    def _grammar(self, path: str, format: GrammarText) -> Part:
        notation = grammar_notation(format.grammar)
        if notation == "llguidance":
            raise _refusal(f"{path}.grammar", "a grammar is in EBNF or in Lark")
        if format.syntax not in (None, "ebnf" if notation == "gbnf" else notation):
            raise _refusal(f"{path}.syntax", "the grammar is in another one")
        return self._nest(f"{path}.grammar", ConstraintSpec("grammar", format.grammar))

    def _nest(self, path: str, spec: ConstraintSpec) -> Part:
        name = f"nested{len(self._nested)}"
        self._nested.append(Nested(path, spec, name))
        return Rule(f"@{name}")

    def _regex(self, path: str, pattern: str) -> list[Part]:
        if not pattern:
            return []
        self._nested.append(Nested(path, ConstraintSpec("regex", pattern), None))
        quoted = TO_ESCAPE.sub(lambda found: ESCAPED.get(found[0], found[0]), pattern)
        if TO_ESCAPE.sub("", pattern).endswith("\\"):
            raise _refusal(path, "it ends within an escape")
        return [Text(f"/{quoted}/")]

    def _any_text(self, path: str, excludes: Seq[str]) -> Text:
        """Text of any length, in which the excluded texts do not occur."""
        if not excludes:
            return Text(ANY, open_at=path)
        has_one = self._lark.terminal(f"{ANY} {Text.fixed(*excludes).term} {ANY}")
        return Text(self._lark.terminal(f"{ANY} & ~{has_one}"), open_at=path)

    def _begin(self, path: str, tag: Tag) -> list[Part]:
        if isinstance(tag.begin, Token):
            return [self._token(f"{path}.begin", tag.begin)]
        return self._fixed(tag.begin)

    def _content_and_end(self, path: str, tag: Tag) -> list[Part]:
        content = self._format(f"{path}.content", tag.content)
        ends = self._ends(path, tag)
        if open_end(content) and [] in ends:
            raise _refusal(f"{path}.end", "free text needs an end that is not empty")
        if len(ends) == 1:
            return [*content, *ends[0]]
        return [self._lark.one_of([[*content, *end] for end in ends])]

    def _ends(self, path: str, tag: Tag) -> list[list[Part]]:
        """The ends that a tag can have; those that are mere texts are one."""
        if isinstance(tag.end, Token):
            return [[self._token(f"{path}.end", tag.end)]]
        ends = [tag.end] if isinstance(tag.end, str) else tag.end
        rows = [self._fixed(end, closes=True) for end in ends]
        texts = [end for end, row in zip(ends, rows, strict=True) if _is_text(row)]
        others = [row for row in rows if not _is_text(row)]
        return [[Text.fixed(*texts, closes=True)], *others] if texts else others

    def _triggered_tags(self, path: str, format: TriggeredTags) -> Part:
        tags = []
        for i, tag in enumerate(format.tags):
            at = f"{path}.tags[{i}]"
            if isinstance(tag.begin, Token):
                raise _refusal(f"{at}.begin", "a tag that is triggered begins with a text")
            tags.append(Triggered(tag.begin, f"{at}.begin", self._content_and_end(at, tag)))
        return self._triggered(
            path,
            f"{path}.triggers",
            format.triggers,
            tags,
            excludes=format.excludes,
            at_least_one=format.at_least_one,
            stop_after_first=format.stop_after_first,
        )

    def _triggered(
        self,
        path: str,
        triggers_at: str,
        triggers: Seq[str],
        tags: Seq[Triggered],
        *,
        excludes: Seq[str] = (),
        at_least_one: bool = False,
        stop_after_first: bool = False,
    ) -> Part:
        lark = self._lark
        rows = self._dispatch(triggers_at, triggers, tags)
        first = f"({lark.alternatives(rows)})"
        if at_least_one and stop_after_first:
            return Rule(first)
        texts = [trigger for trigger in triggers if _is_text(self._fixed(trigger))]
        free = self._any_text(path, [*texts, *excludes])
        following = f"({lark.alternatives([[free, *row] for row in rows])})"

        def ended_by(end: Seq[Part]) -> str:
            _check_end(triggers_at, texts, end)
            last = lark.join([free, *end])
            if stop_after_first:
                return f"{following} {lark.join(end)} | {last}"
            return f"{first if at_least_one else ''} {following}* {last}"

        return OpenRule(ended_by, path)

    def _dispatch(self, path: str, triggers: Seq[str], tags: Seq[Triggered]) -> list[list[Part]]:
        """Each trigger, and what may follow it."""
        rests: dict[str, list[list[Part]]] = {trigger: [] for trigger in triggers}
        for tag in tags:
            trigger = self._trigger(triggers, tag)
            rests[trigger].append([*self._fixed(tag.begin.removeprefix(trigger)), *tag.rest])
        for i, trigger in enumerate(triggers):
            if not rests[trigger]:
                raise _refusal(f"{path}[{i}]", "no tag begins with it")
        return [
            [*self._fixed(trigger), Rule(self._lark.rule(self._lark.alternatives(rows)))]
            for trigger, rows in rests.items()
        ]

    def _trigger(self, triggers: Seq[str], tag: Triggered) -> str:
        """The trigger of a tag."""
        found = [trigger for trigger in triggers if tag.begin.startswith(trigger)]
        if len(found) != 1:
            raise _refusal(tag.begin_at, f"it begins with {len(found)} triggers instead of one")
        pieces = [*self._fixed(found[0]), *self._fixed(tag.begin.removeprefix(found[0]))]
        if _specials(pieces) != _specials(self._fixed(tag.begin)):
            raise _refusal(tag.begin_at, "its trigger ends within a special token")
        return found[0]

    def _tags_with_separator(self, path: str, format: TagsWithSeparator) -> Part:
        rows = [
            [*self._begin(at, tag), *self._content_and_end(at, tag)]
            for at, tag in ((f"{path}.tags[{i}]", tag) for i, tag in enumerate(format.tags))
        ]
        tag = self._lark.rule(self._lark.alternatives(rows))
        body = tag
        if not format.stop_after_first:
            body += f" ({self._lark.join([*self._fixed(format.separator), Rule(tag)])})*"
        return Rule(f"({body})" if format.at_least_one else f"({body})?")


def _refusal(path: str, reason: str) -> InvalidConstraintError:
    return InvalidConstraintError(f"{path}: {reason}")


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
                raise _refusal(f"{path}.max", f"{most} is less than {least}")
            return f"{{{least},{most}}}"


def _is_text(parts: Seq[Part]) -> bool:
    return len(parts) == 1 and isinstance(parts[0], Text)


def _specials(parts: Seq[Part]) -> list[Part]:
    return [part for part in parts if isinstance(part, Special)]


def _check_end(path: str, triggers: Seq[str], end: Seq[Part]) -> None:
    """Raises InvalidConstraintError if a trigger would be found in the text that is to end it."""
    choices = end[0].choices if end and isinstance(end[0], Text) else ()
    for trigger in triggers:
        for text in choices:
            if trigger in text:
                raise _refusal(path, f"{trigger!r} occurs in {text!r}, which ends the text")
