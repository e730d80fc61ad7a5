"""Regular expressions, written anew in xgrammar's EBNF.

xgrammar can read them itself, but not as they are meant: it drops anchors wherever they stand and
look-ahead in patterns of a JSON Schema, takes escapes that it does not know for plain letters, and
its automata allow more than some expressions do.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from math import inf

from tokenloom_engine.constraints.backends.xgrammar.ebnf import LAST, Characters, literal, one_of

MAX_REPEATS = 1_000
"""How often a counted repetition, with those around it, may repeat: what more makes masks slow."""

DIGITS = Characters.of("0123456789")
WORD = Characters([(ord("0"), ord("9")), (ord("A"), ord("Z")), (ord("a"), ord("z"))])
WORD |= Characters.of("_")
SPACE = Characters.of(
    "\t\n\v\f\r \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)
CLASSES = {"d": DIGITS, "D": ~DIGITS, "w": WORD, "W": ~WORD, "s": SPACE, "S": ~SPACE}
NEWLINE = Characters.of("\n")
ESCAPED_IN_JSON = Characters([(0, 0x1F)]) | Characters.of('"\\')
CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"}

ESCAPE = re.compile(
    r"\\(?:(?P<set>[dDwWsS])|(?P<control>[nrtfv]|0(?![0-9]))|c(?P<letter>[A-Za-z])"
    r"|x(?P<two>[0-9A-Fa-f]{2})|u(?P<four>[0-9A-Fa-f]{4})|u\{(?P<more>[0-9A-Fa-f]{1,6})\}"
    r"|(?P<itself>[^A-Za-z0-9]))",
    re.DOTALL,
)
QUANTIFIER = re.compile(r"([*+?]|\{(?P<least>\d+)(?P<open>,(?P<most>\d+)?)?\})\??")
GROUP = re.compile(r"\((?:\?:|\?P?<[A-Za-z_]\w*>)?(?!\?)")
CLASS = re.compile(r"\[(?!\^?\])(?P<negated>\^?)")


class RegexError(ValueError):
    """This cannot be done; the message says what and where."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How long a match can be, and how much its counted repetitions repeat."""

    shortest: float = 0
    longest: float = 0
    repeats: int = 1

    def then(self, other: Extent) -> Extent:
        """One after the other."""
        return Extent(
            self.shortest + other.shortest,
            self.longest + other.longest,
            max(self.repeats, other.repeats),
        )

    def times(self, least: int, most: float) -> Extent:
        """At least `least` times, at most `most` times."""
        count = max(1, least if most == inf else int(most))
        longest = 0 if most == 0 or self.longest == 0 else self.longest * most
        return Extent(self.shortest * least, longest, self.repeats * count)


ONE = Extent(1, 1)


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of the texts between bars."""

    ebnf: str
    """Without anchors."""
    at_start: bool
    at_end: bool
    extent: Extent


class Regex:
    """A regular expression, taken apart."""

    def __init__(self, pattern: str, *, in_json: bool = False) -> None:
        """Read it. Raises RegexError. `in_json`: for what stands between a JSON string's quotes."""
        self._pattern = pattern
        self._position = 0
        self._in_json = in_json
        self._alternatives = self._read_alternatives(depth=0)
        if self._position < len(pattern):
            raise self._error("unmatched ')'")

    @property
    def whole(self) -> str:
        """EBNF of the texts that it matches from their first to their last character."""
        return one_of(alternative.ebnf for alternative in self._alternatives)

    @property
    def containing(self) -> str:
        """EBNF of the texts that contain a match."""
        some = f"{self._characters(~Characters())}*"
        return one_of(
            f"{'' if one.at_start else some} {one.ebnf} {'' if one.at_end else some}".strip()
            for one in self._alternatives
        )

    @property
    def is_trivial(self) -> bool:
        """Whether every text contains a match."""
        return any(
            one.extent.shortest == 0 and not (one.at_start and one.at_end)
            for one in self._alternatives
        )

    @property
    def shortest(self) -> float:
        """The length of the shortest text that contains a match."""
        return min(one.extent.shortest for one in self._alternatives)

    @property
    def longest(self) -> float:
        """The length of the longest text that contains a match."""
        return max(
            one.extent.longest if one.at_start and one.at_end else inf for one in self._alternatives
        )

    def _read_alternatives(self, depth: int) -> list[Alternative]:
        """Up to the end or to the parenthesis that closes the group."""
        if depth > 100:
            raise self._error("groups are nested too deeply")
        alternatives = [self._read_alternative(depth)]
        while self._take("|"):
            alternatives.append(self._read_alternative(depth))
        return alternatives

    def _read_alternative(self, depth: int) -> Alternative:
        at_start = depth == 0 and self._take("^")
        at_end = False
        parts: list[str] = []
        extent = Extent()
        while self._position < len(self._pattern) and self._next not in "|)":
            if depth == 0 and self._take("$"):
                at_end = True
                break
            part, part_extent = self._read_atom(depth)
            quantifier, part_extent = self._read_quantifier(part_extent)
            parts.append(part + quantifier)
            extent = extent.then(part_extent)
        if at_end and self._position < len(self._pattern) and self._next not in "|)":
            raise self._error("'$' is supported at the end of an alternative only", -1)
        return Alternative(" ".join(parts) or '""', at_start, at_end, extent)

    def _read_atom(self, depth: int) -> tuple[str, Extent]:
        match self._next:
            case "(":
                return self._read_group(depth)
            case "[":
                return self._characters(self._read_class()), ONE
            case "\\":
                return self._characters(self._read_escape()), ONE
            case ".":
                self._position += 1
                return self._characters(~NEWLINE), ONE
            case "*" | "+" | "?":
                raise self._error("there is nothing to repeat")
            case "{" if self._pattern.startswith("{,", self._position):
                raise self._error("a repetition without its least count")
            case "^" | "$" as anchor:
                raise self._error(f"{anchor!r} is supported around an alternative only")
            case character:
                self._position += 1
                return self._characters(Characters.of(character)), ONE

    def _read_group(self, depth: int) -> tuple[str, Extent]:
        found = GROUP.match(self._pattern, self._position)
        if found is None:
            raise self._error("look-around and flags are not supported")
        start, self._position = self._position, found.end()
        alternatives = self._read_alternatives(depth + 1)
        if not self._take(")"):
            raise self._error("the parenthesis is not closed", start - self._position)
        extents = [alternative.extent for alternative in alternatives]
        extent = Extent(
            min(extent.shortest for extent in extents),
            max(extent.longest for extent in extents),
            max(extent.repeats for extent in extents),
        )
        return one_of(alternative.ebnf for alternative in alternatives), extent

    def _read_quantifier(self, atom: Extent) -> tuple[str, Extent]:
        found = QUANTIFIER.match(self._pattern, self._position)
        if found is None:
            return "", atom
        least, most = _counts(found)
        if most < least:
            raise self._error("a repetition's least count is greater than its most")
        extent = atom.times(least, most)
        if extent.repeats > MAX_REPEATS:
            raise self._error(f"counted repetitions add up to more than {MAX_REPEATS}")
        self._position = found.end()
        if QUANTIFIER.match(self._pattern, self._position):
            raise self._error("two repetitions in a row")
        return found[1], extent

    def _read_class(self) -> Characters:
        found = CLASS.match(self._pattern, self._position)
        if found is None:
            raise self._error("a character class that begins with ']'")
        start, self._position = self._position, found.end()
        characters = Characters()
        while not self._take("]"):
            if self._position >= len(self._pattern):
                raise self._error("the '[' is not closed", start - self._position)
            if self._pattern.startswith(("[:", "[.", "[="), self._position):
                raise self._error("named character classes are not supported")
            characters |= self._read_range()
        return ~characters if found["negated"] else characters

    def _read_range(self) -> Characters:
        """A member of a class, or all from one to another."""
        first = self._read_member()
        is_range = self._pattern.startswith("-", self._position)
        if not is_range or first.only is None or self._pattern.startswith("-]", self._position):
            return first
        self._position += 1
        if self._position >= len(self._pattern):
            raise self._error("the '[' is not closed")
        last = self._read_member().only
        if last is None or last < first.only:
            raise self._error("these are no bounds of a range", -1)
        return Characters([(ord(first.only), ord(last))])

    def _read_member(self) -> Characters:
        if self._pattern.startswith("\\b", self._position):
            self._position += 2
            return Characters.of("\b")
        if self._next == "\\":
            return self._read_escape()
        self._position += 1
        return Characters.of(self._pattern[self._position - 1])

    def _read_escape(self) -> Characters:
        found = ESCAPE.match(self._pattern, self._position)
        if found is None:
            escaped = self._pattern[self._position : self._position + 2]
            raise self._error(f"{escaped} is not supported")
        self._position = found.end()
        if found["set"]:
            return CLASSES[found["set"]]
        if found["control"]:
            return Characters.of(CONTROLS[found["control"]])
        if found["letter"]:
            return Characters.of(chr(ord(found["letter"]) & 0x1F))
        if found["itself"]:
            return Characters.of(found["itself"])
        code = int(found["two"] or found["four"] or found["more"], 16)
        if code > LAST or 0xD800 <= code < 0xE000:
            raise self._error(f"there is no character {code:#x}", -1)
        return Characters.of(chr(code))

    def _characters(self, characters: Characters) -> str:
        if not characters:
            raise self._error("nothing is in the character class", -1)
        if not self._in_json:
            return _written(characters)
        plain = characters - ESCAPED_IN_JSON
        if plain:
            return _written(plain)
        codes = (code for first, last in characters.ranges for code in range(first, last + 1))
        return one_of(literal(json.dumps(chr(code))[1:-1]) for code in codes)

    def _take(self, text: str) -> bool:
        found = self._pattern.startswith(text, self._position)
        self._position += len(text) * found
        return found

    @property
    def _next(self) -> str:
        return self._pattern[self._position]

    def _error(self, message: str, offset: int = 0) -> RegexError:
        return RegexError(f"{message}, at character {self._position + offset + 1}")


def _written(characters: Characters) -> str:
    return str(characters) if characters.only is None else literal(characters.only)


def _counts(found: re.Match[str]) -> tuple[int, float]:
    match found[0][0]:
        case "*":
            return 0, inf
        case "+":
            return 1, inf
        case "?":
            return 0, 1
    least = int(found["least"])
    if found["open"] is None:
        return least, least
    return least, inf if found["most"] is None else int(found["most"])
