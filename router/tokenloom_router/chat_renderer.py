"""The process that renders chat templates: programs that come with a model, in a sandbox.

Started by the front as `python -m tokenloom_router.chat_renderer`; it reads messages from its
standard input and writes one answer to each to its standard output. It ends when its input does. A
template that never ends, or fills the memory, costs this process alone.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from typing import Any, cast

import msgspec

from tokenloom_engine.frames import FrameBuffer, framed

MAX_MEMORY_BYTES = 4 << 30
"""Of address space."""
MAX_REASON_CHARACTERS = 500
MAX_SECONDS = 60
"""The front ends a process long before; this is for one whose front has gone."""
READY = b"ready"


class RenderRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A chat, as transformers takes it."""

    template: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: dict[str, Any] = {}
    """What the template may use besides."""


class Rendering(msgspec.Struct, frozen=True, omit_defaults=True):
    """A prompt's text, or why there is none."""

    text: str = ""
    error: str | None = None


def main() -> int:
    """Entry point."""
    # Ctrl-C reaches the whole group; the front decides when the process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    output = os.dup(1)
    os.dup2(2, 1)  # whatever prints, prints to the log
    from transformers.utils.chat_template_utils import render_jinja_template

    def render(request: RenderRequest) -> Rendering:
        try:
            # what it returns is not what its annotations say
            (text,), _ = cast(
                "tuple[list[str], object]",
                render_jinja_template(
                    conversations=[request.messages],
                    tools=cast(Any, request.tools),
                    documents=request.documents,
                    chat_template=request.template,
                    continue_final_message=request.continue_final_message,
                    add_generation_prompt=request.add_generation_prompt,
                    **request.variables,
                ),
            )
        except Exception as error:  # whatever a template does wrong
            reason = str(error) or type(error).__name__
            return Rendering(error=reason[:MAX_REASON_CHARACTERS])
        return Rendering(text)

    frames = FrameBuffer()
    decoder = msgspec.json.Decoder(RenderRequest)
    try:
        _write(output, framed(READY))
        while data := os.read(0, 65536):
            for message in frames.feed(data):
                signal.alarm(MAX_SECONDS)
                rendering = render(decoder.decode(message))
                signal.alarm(0)
                _write(output, framed(msgspec.json.encode(rendering)))
    except BrokenPipeError:
        return 0  # the front has gone
    return 0


def _write(output: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(output, rest) :]


if __name__ == "__main__":
    sys.exit(main())
