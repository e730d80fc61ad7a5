"""Free text in which some texts, the triggers, lead to tags."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from tokenloom_engine.constraints.lark_parts import LarkWriter, OpenRule, Part, Rule, Special, Text
from tokenloom_engine.constraints.tag_parts import TagTexts, is_text, refusal


@dataclass(frozen=True, slots=True)
class TriggeredTag:
    """A tag that a trigger leads to."""

    begin: str
    begin_at: str
    rest: Seq[Part]
    """Its content and its end."""


class TriggeredText:
    """Writes such texts into one tag's grammar."""

    def __init__(self, texts: TagTexts, lark: LarkWriter) -> None:
        self._texts = texts
        self._lark = lark

    def part(
        self,
        path: str,
        triggers_at: str,
        triggers: Seq[str],
        tags: Seq[TriggeredTag],
        *,
        excludes: Seq[str] = (),
        at_least_one: bool = False,
        stop_after_first: bool = False,
    ) -> Part:
        """The text at a path. Raises InvalidConstraintError."""
        lark = self._lark
        rows = self._dispatch(triggers_at, triggers, tags)
        first = f"({lark.alternatives(rows)})"
        if at_least_one and stop_after_first:
            return Rule(first)
        texts = [trigger for trigger in triggers if is_text(self._texts.fixed(trigger))]
        free = self._texts.free(path, [*texts, *excludes])
        following = f"({lark.alternatives([[free, *row] for row in rows])})"

        def ended_by(end: Seq[Part]) -> str:
            _check_end(triggers_at, texts, end)
            last = lark.join([free, *end])
            if stop_after_first:
                return f"{following} {lark.join(end)} | {last}"
            return f"{first if at_least_one else ''} {following}* {last}"

        return OpenRule(ended_by, path)

    def _dispatch(self, path: str, triggers: Seq[str], tags: Seq[TriggeredTag]) -> list[list[Part]]:
        """Each trigger, and what may follow it."""
        rests: dict[str, list[list[Part]]] = {trigger: [] for trigger in triggers}
        for tag in tags:
            trigger = self._trigger(triggers, tag)
            rests[trigger].append([*self._texts.fixed(tag.begin.removeprefix(trigger)), *tag.rest])
        for i, trigger in enumerate(triggers):
            if not rests[trigger]:
                raise refusal(f"{path}[{i}]", "no tag begins with it")
        return [
            [*self._texts.fixed(trigger), Rule(self._lark.rule(self._lark.alternatives(rows)))]
            for trigger, rows in rests.items()
        ]

    def _trigger(self, triggers: Seq[str], tag: TriggeredTag) -> str:
        """The trigger of a tag."""
        found = [trigger for trigger in triggers if tag.begin.startswith(trigger)]
        if len(found) != 1:
            raise refusal(tag.begin_at, f"it begins with {len(found)} triggers instead of one")
        pieces = [
            *self._texts.fixed(found[0]),
            *self._texts.fixed(tag.begin.removeprefix(found[0])),
        ]
        if _specials(pieces) != _specials(self._texts.fixed(tag.begin)):
            raise refusal(tag.begin_at, "its trigger ends within a special token")
        return found[0]


def _specials(parts: Seq[Part]) -> list[Part]:
    return [part for part in parts if isinstance(part, Special)]


def _check_end(path: str, triggers: Seq[str], end: Seq[Part]) -> None:
    """Raises InvalidConstraintError if a trigger would be found in the text that is to end it."""
    choices = end[0].choices if end and isinstance(end[0], Text) else ()
    for trigger in triggers:
        for text in choices:
            if trigger in text:
                raise refusal(path, f"{trigger!r} occurs in {text!r}, which ends the text")
