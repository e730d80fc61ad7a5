"""For models that are not trained to call tools: JSON that nobody would write by chance."""

from __future__ import annotations

from tokenloom_server.tools.call_format import CallFormat

OPENER = '{"tool_call": '


def call_format(_template: str | None) -> CallFormat:
    """See `formats`."""
    return CallFormat(
        opener=OPENER,
        before_name='{"name": "',
        after_name='", "arguments": ',
        end="}}",
        separator=f"\n{OPENER}",
        needs_prompt=True,
    )
