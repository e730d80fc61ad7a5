"""Llama 3: an answer that is one JSON object with a tool's name and parameters.

Nothing but its contents tells it from JSON that is meant for the user. So only the whole beginning,
with the name of a tool that there is, makes it a call.
"""

from __future__ import annotations

from tokenloom_server.tools.call_format import CallFormat

MARKS = ("ipython", '"parameters": ')


def call_format(template: str | None) -> CallFormat | None:
    """See `formats`."""
    if template is not None and not all(mark in template for mark in MARKS):
        return None
    return CallFormat(before_name='{"name": "', after_name='", "parameters": ', end="}")
