"""Parts of a text in a row, written in Lark such that llguidance's lexer cannot go astray.

That lexer takes the longest lexeme it can: free text would swallow what is to end it. Hence
regular neighbours become one lexeme, and one in which free text meets a fixed text is lazy: it ends
where that text first occurs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import takewhile

from tokenloom_engine.constraints.base import InvalidConstraintError

ANY = "/(?s:.*)/"
EMPTY = '""'


@dataclass(frozen=True, slots=True)
class Text:
    """Something regular."""

    term: str
    """A terminal's expression."""
    choices: tuple[str, ...] = ()
    """What it can be, if it is one of given texts: then it is called fixed."""
    open_at: str | None = None
    """Its path, if it is free text, which only a fixed text or a special token can end."""
    closes: bool = False
    """Whether it is fixed and ends a tag: everything before it ends where it first occurs."""

    @classmethod
    def fixed(cls, *choices: str, closes: bool = False) -> Text:
        """One of these texts."""
        return cls(f"({' | '.join(map(json.dumps, choices))})", choices, closes=closes)


@dataclass(frozen=True, slots=True)
class Special:
    """A special token; no text contains one."""

    id: int


@dataclass(frozen=True, slots=True)
class Rule:
    """Something that is not regular."""

    body: str


@dataclass(frozen=True, slots=True)
class OpenRule:
    """Something that is not regular and ends in free text."""

    ended_by: Callable[[Seq[Part]], str]
    """Its body, with the parts in it that end it."""
    open_at: str


Part = Text | Special | Rule | OpenRule


class LarkWriter:
    """Writes one grammar."""

    def __init__(self) -> None:
        self._rules: list[str] = []
        self._names: dict[tuple[str, str], str] = {}

    def grammar(self, parts: Seq[Part]) -> str:
        """All of it. Raises InvalidConstraintError as `join` does."""
        return "\n".join([f"start: {self.join(parts)}", *self._rules])

    def join(self, parts: Seq[Part]) -> str:
        """The body of a rule: one part after the other. The last may be open.

        Raises InvalidConstraintError if another one is open.
        """
        words: list[str] = []
        rest = list(parts)
        while rest:
            match rest[0]:
                case Text():
                    run = _regular(rest)
                    del rest[: len(run)]
                    words.append(self._lexeme(run, rest))
                case Special(id):
                    words.append(f"<[{id}]>")
                    del rest[0]
                case Rule(body):
                    words.append(body)
                    del rest[0]
                case OpenRule(ended_by, open_at):
                    end = _end(open_at, rest[1:])
                    del rest[: 1 + len(end)]
                    words.append(f"({ended_by(end)})")
        return " ".join(words) or EMPTY

    def one_of(self, rows: Seq[Seq[Part]]) -> Part:
        """One of these rows of parts."""
        texts = [row[0] for row in rows if len(row) == 1 and isinstance(row[0], Text)]
        if len(texts) == len(rows) and not any(text.closes for text in texts):
            return _one_of(texts)
        open_at = next(filter(None, map(open_end, rows)), None)
        if open_at is None:
            return Rule(f"({self.alternatives(rows)})")
        return OpenRule(lambda end: self.alternatives([[*row, *end] for row in rows]), open_at)

    def alternatives(self, rows: Seq[Seq[Part]]) -> str:
        """The body of a rule: one of these rows of parts."""
        return " | ".join(map(self.join, rows))

    def repeat(self, parts: Seq[Part], quantifier: str) -> Part:
        """A row of parts as often as Lark's quantifier says.

        Raises InvalidConstraintError if it is open and not regular.
        """
        match parts:
            case [Text(closes=False) as text]:
                term = f"({text.term}){quantifier}"
                return Text(term, open_at=text.open_at)
            case _ if open_at := open_end(parts):
                raise unended(open_at)
        return Rule(f"({self.join(parts)}){quantifier}")

    def terminal(self, expression: str) -> str:
        """A name for a terminal."""
        return self._name("T{}", expression)

    def rule(self, body: str) -> str:
        """A name for a rule."""
        return self._name("r{}", body)

    def _lexeme(self, run: Seq[Text], rest: Seq[Part]) -> str:
        is_lazy = _is_lazy(run)
        open_at = next((text.open_at for text in run if text.open_at), None)
        if open_at and not is_lazy and rest and not isinstance(rest[0], Special):
            raise unended(open_at)
        if all(len(text.choices) == 1 for text in run):
            return json.dumps("".join(text.choices[0] for text in run))
        term = self.terminal(" ".join(text.term for text in run))
        if is_lazy and not (rest and isinstance(rest[0], Special)):
            return self._name("r{}[lazy]", term)
        return term

    def _name(self, form: str, body: str) -> str:
        name = self._names.get((form, body))
        if name is None:
            number = len(self._names)
            name = self._names[form, body] = form.format(number).removesuffix("[lazy]")
            self._rules.append(f"{form.format(number)}: {body}")
        return name


def open_end(parts: Seq[Part]) -> str | None:
    """The path of what is open at the end of a row of parts, if something is."""
    for part in reversed(parts):
        match part:
            case OpenRule(open_at=open_at):
                return open_at
            case Text(choices=()):
                if part.open_at:
                    return part.open_at
            case _:
                return None
    return None


def unended(open_at: str) -> InvalidConstraintError:
    """That free text has something behind it that cannot end it."""
    return InvalidConstraintError(f"{open_at}: free text needs a fixed text behind it that ends it")


def _one_of(texts: Seq[Text]) -> Text:
    is_fixed = all(text.choices for text in texts)
    return Text(
        f"({' | '.join(text.term for text in texts)})",
        tuple(choice for text in texts for choice in text.choices) if is_fixed else (),
        open_at=next((text.open_at for text in texts if text.open_at), None),
    )


def _regular(parts: Seq[Part]) -> list[Text]:
    """The texts at the head of these parts that become one lexeme."""
    run: list[Text] = []
    for part in parts:
        if not isinstance(part, Text):
            break
        if run and (run[-1].closes or (_is_lazy(run) and not part.choices)):
            break
        run.append(part)
    return run


def _is_lazy(run: Seq[Text]) -> bool:
    """Whether a lexeme ends where its last text first occurs."""
    is_fixed = all(text.choices for text in run)
    is_free = any(text.open_at for text in run)
    return bool(run[-1].choices) and not is_fixed and (is_free or run[-1].closes)


def _end(open_at: str, parts: Seq[Part]) -> list[Part]:
    """What of the parts behind an open one ends it; nothing if there are none.

    Raises InvalidConstraintError if they do not.
    """
    if not parts:
        return []
    if isinstance(parts[0], Special):
        return [parts[0]]
    fixed = [*takewhile(lambda part: isinstance(part, Text) and part.choices, parts)]
    if not fixed:
        raise unended(open_at)
    closing = [isinstance(part, Text) and part.closes for part in fixed]
    return fixed[: closing.index(True) + 1] if True in closing else fixed
