"""Patterns of a JSON Schema, in a form whose classes llguidance quotes exactly.

The library matches a pattern against the JSON spelling of a string. It takes a class that has all
control characters for one that has `"` and `\\` as well, and so admits `\\"` where `[^"]` stands.
A class without U+0000 is spelled character by character, which is exact. No string with a pattern
loses more than U+0000 by it.
"""

from __future__ import annotations

import re

NOTHING = r"[^\s\S]"
"""A class without a character."""
ATOM = re.compile(
    r"""
      \\x\{(?P<braced>[0-9a-fA-F]+)\} | \\[uU]\{(?P<braced_u>[0-9a-fA-F]+)\}
    | \\x(?P<two>[0-9a-fA-F]{2}) | \\u(?P<four>[0-9a-fA-F]{4}) | \\U(?P<eight>[0-9a-fA-F]{8})
    | (?P<property>\\[pP](?:\{[^}]*\}|.))
    | (?P<escape>\\.)
    | (?P<verbose>\(\?[a-zA-Z]*x[a-zA-Z-]*[:)])
    | (?P<stop>\(\?P?<stop>)
    | (?P<opening>\[)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
POSIX = re.compile(r"\[[:.=]\^?\w+[:.=]\]?")
DIFFERENCE = re.compile(r"(?<!\\)(?:\\\\)*--")
ESCAPE_OR_OPERATOR = re.compile(r"\\.|\[|&&|~~", re.DOTALL)
"""Nested classes and intersections are the library's; to ECMA-262 these are characters."""
HARMLESS = re.compile(r"\[(?!\^)(?:\\[dsw\W_]|[^\\\x00-\x1f])*\]", re.DOTALL)
"""A class that names its characters, none of them a control character by a code."""
CODES = ("braced", "braced_u", "two", "four", "eight")


def exact_pattern(pattern: str) -> str:
    """Rewrite a pattern so that the library enforces it exactly; most stay as they are.

    Raises ValueError where the library reads a class otherwise than ECMA-262 does. A pattern that
    is not a regular expression comes back in a form that is none either.
    """
    parts: list[str] = []
    at = 0
    while at < len(pattern):
        atom = ATOM.match(pattern, at)
        if atom is None:  # it ends within an escape
            return pattern
        end = atom.end()
        text = atom[0]
        if atom.lastgroup == "opening":
            end = _end_of_class(pattern, at)
            if end > len(pattern):
                return pattern
            text = _exact_class(pattern[at:end])
        elif atom.lastgroup == "verbose":
            raise ValueError(f"the flag `x` is not supported: {atom[0]}")
        elif atom.lastgroup == "stop":  # to the library, a lookahead
            raise ValueError("a group cannot have the name `stop`")
        elif atom.lastgroup == "property":
            text = _without_nul(text)
        elif text == "\0" or (atom.lastgroup in CODES and not int(atom[atom.lastgroup], 16)):
            text = NOTHING
        parts.append(text)
        at = end
    return "".join(parts)


def _end_of_class(pattern: str, start: int) -> int:
    """Where the class ends whose bracket opens there, or the pattern."""
    at = start + 1
    at += pattern.startswith("^", at)
    at += pattern.startswith("]", at)  # first of all, it is a character to the library
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at + 1


def _exact_class(text: str) -> str:
    """The class without the library's own operators, and without U+0000 if it may have that.

    Raises ValueError.
    """
    if POSIX.search(text):
        raise ValueError(f"POSIX classes are not supported: {text}")
    if DIFFERENCE.search(text):
        raise ValueError(f"write `\\-` for a `-` in the class {text}")
    text = text[0] + ESCAPE_OR_OPERATOR.sub(_escaped, text[1:])
    return text if HARMLESS.fullmatch(text) else _without_nul(text)


def _escaped(found: re.Match[str]) -> str:
    word = found[0]
    return word if word[0] == "\\" else "".join(rf"\{character}" for character in word)


def _without_nul(text: str) -> str:
    return rf"[{text}&&[^\x00]]"
