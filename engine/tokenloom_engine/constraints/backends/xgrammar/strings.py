"""What JSON Schemas say of strings, in xgrammar's words."""

from __future__ import annotations

from math import inf

from tokenloom_engine.constraints.backends.xgrammar.document import Schema
from tokenloom_engine.constraints.backends.xgrammar.formats import EXACT_FORMATS, NATIVE_FORMATS
from tokenloom_engine.constraints.backends.xgrammar.keywords import OF_STRINGS, of_type
from tokenloom_engine.constraints.backends.xgrammar.notes import Notes
from tokenloom_engine.constraints.backends.xgrammar.regex import Regex, RegexError
from tokenloom_engine.constraints.subschema import Path


def translate_string(schema: Schema, at: Path, notes: Notes) -> Schema:
    """A format, a pattern or lengths: xgrammar heeds no more than one of them."""
    own = of_type(schema, OF_STRINGS)
    form: str | None = own.pop("format", None)
    if form is not None and form not in EXACT_FORMATS.keys() | NATIVE_FORMATS.keys():
        notes.leave_out("format", at, repr(form))
        form = None
    if form is not None and own.pop("pattern", None) is not None:
        notes.leave_out("pattern", at, "beside format")
    if form is not None and form in EXACT_FORMATS:
        own["pattern"], form = EXACT_FORMATS[form], None
    if form is not None:
        return _lengths(own, at, notes, *NATIVE_FORMATS[form]) | {"format": form}
    regex = _pattern(own, at, notes)
    if regex is not None:
        lengths = _lengths(own, at, notes, regex.shortest, regex.longest)
        return lengths | {"pattern": notes.keep_pattern(regex.containing)}
    return {key: int(value) for key, value in own.items() if key != "pattern"}


def read_pattern(pattern: str) -> tuple[Regex | None, str]:
    """The pattern, or why it cannot be read."""
    try:
        return Regex(pattern, in_json=True), ""
    except RegexError as error:
        return None, f"({error})"


def _pattern(own: Schema, at: Path, notes: Notes) -> Regex | None:
    if "pattern" not in own:
        return None
    regex, reason = read_pattern(own["pattern"])
    if regex is None:
        notes.leave_out("pattern", at, reason)
    return None if regex is None or regex.is_trivial else regex


def _lengths(own: Schema, at: Path, notes: Notes, shortest: float, longest: float) -> Schema:
    """Nothing: what else describes the string implies the lengths, or they are left out."""
    if own.get("minLength", 0) > shortest:
        notes.leave_out("minLength", at, "beside pattern or format")
    if own.get("maxLength", inf) < longest:
        notes.leave_out("maxLength", at, "beside pattern or format")
    return {}
