"""Mistral: a list of calls behind `[TOOL_CALLS]`, or, newer, a name, `[ARGS]` and arguments."""

from __future__ import annotations

from tokenloom_server.tools.call_format import CallFormat

OPENER = "[TOOL_CALLS]"
ARGS = "[ARGS]"
ID_LENGTH = 9


def call_format(template: str | None) -> CallFormat | None:
    """See `formats`."""
    if template is not None and OPENER not in template:
        return None
    if template is not None and ARGS in template:
        return CallFormat(opener=OPENER, after_name=ARGS, separator=OPENER, id_length=ID_LENGTH)
    is_tight = template is not None and f"{OPENER}[" in template
    return CallFormat(
        opener=f"{OPENER}[" if is_tight else f"{OPENER} [",
        before_name='{"name": "',
        after_name='", "arguments": ',
        end="}",
        separator=", ",
        closer="]",
        id_length=ID_LENGTH,
    )
