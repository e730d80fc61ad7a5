"""Llama 3: an answer that is one JSON object with a tool's name and parameters.

Nothing but its contents tells it from JSON that is meant for the user. So only the whole beginning,
with the name of a tool that there is, makes it a call.
"""

from __future__ import annotations

from tokenloom_server.tools.call_format import CallFormat

ARGUMENTS = '"parameters": '
FAMILY = ("<|start_header_id|>", "ipython")
"""Either is in the templates of this family alone."""


def call_format(template: str | None) -> CallFormat | None:
    """See `formats`."""
    if template is not None and not (
        ARGUMENTS in template and any(mark in template for mark in FAMILY)
    ):
        return None
    return CallFormat(before_name='{"name": "', after_name='", "parameters": ', end="}")
