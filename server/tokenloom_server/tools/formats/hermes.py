"""Hermes, Qwen and those that follow them: JSON between `<tool_call>` and `</tool_call>`."""

from __future__ import annotations

from tokenloom_server.tools.call_format import CallFormat

OPENER = "<tool_call>"


def call_format(template: str | None) -> CallFormat | None:
    """See `formats`."""
    if template is not None and OPENER not in template:
        return None
    return CallFormat(
        opener=OPENER,
        before_name='\n{"name": "',
        after_name='", "arguments": ',
        end="}\n</tool_call>",
        separator=f"\n{OPENER}",
    )
