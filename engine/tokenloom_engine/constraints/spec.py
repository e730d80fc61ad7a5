"""What a request asks of its output's form."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

ConstraintKind = Literal[
    "json_schema", "json_object", "regex", "choice", "grammar", "structural_tag", "text"
]
ALL_KINDS = frozenset[ConstraintKind](get_args(ConstraintKind))
JSON_KINDS = frozenset[ConstraintKind]({"json_schema", "json_object"})
"""Those whose whole output is JSON."""


class ConstraintSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A constraint before it is compiled: frozen and hashable, the key of the compile cache.

    `value` is the JSON text of a schema (`json_schema`; empty for `json_object`), a regular
    expression that the whole output must match (`regex`), the JSON text of a list of strings
    (`choice`), a grammar's text (`grammar`: Lark, GBNF, or llguidance's own JSON form, told
    apart by the text itself), or the JSON text of a structural tag (`structural_tag`: free text
    with constrained parts). `text` is any text, for the sake of its prefix.
    """

    kind: ConstraintKind
    value: str = ""
    whitespace_pattern: str | None = None
    """JSON kinds: the regular expression of white space between a text's parts; None is none."""
    lenient: bool = False
    """JSON Schema: leave out keywords that the back end does not know, with a warning, instead of
    refusing the schema. The output may then break what they say."""
    prefix: str = ""
    """Stands before what the rest describes: the end of a prompt that token healing backed up."""
