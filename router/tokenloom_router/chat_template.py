"""A chat's messages to the text of a prompt, by the model's chat template."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, LifoQueue
from typing import Any, NamedTuple

import anyio
import msgspec

from tokenloom_router.chat_renderer import Rendering, RenderRequest
from tokenloom_router.chat_template_files import ChatTemplateFiles
from tokenloom_router.errors import UnavailableError, ValidationError
from tokenloom_router.renderer import Renderer, RendererError, RendererLostError

logger = logging.getLogger(__name__)

RENDER_SECONDS = 5.0
"""Of CPU time. Templates take a millisecond; one that never ends holds up other chats so long."""
NUM_RENDERERS = 2
MAX_NESTING = 200
"""Of messages, tools and the like; grammars, which tools become, have a limit of their own."""
PLACEHOLDERS = (0xF0000, 0x100000)
"""Where planes of private characters begin: one stands for a control token while it is rendered."""
PLANE_SIZE = 0xFFFE
RESERVED = {
    "add_generation_prompt",
    "chat_template",
    "continue_final_message",
    "conversations",
    "documents",
    "messages",
    "return_assistant_tokens_mask",
    "tools",
}
"""Variables that a chat template has from elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """A chat, in the form that chat templates take."""

    messages: list[dict[str, Any]]
    """With `role`, `content`, and whatever else the template knows."""
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: dict[str, Any] = field(default_factory=dict)
    """What the template may use besides."""

    @property
    def fields(self) -> dict[str, object]:
        """What clients say in it, by the names that they know."""
        return {
            "messages": self.messages,
            "tools": self.tools,
            "documents": self.documents,
            "chat_template_kwargs": self.variables,
        }


class Piece(NamedTuple):
    """A part of a prompt's text."""

    text: str
    is_plain: bool = False
    """Whether what looks like a special token in it is text all the same."""


class ChatTemplate:
    """Renders chats in processes of their own. Safe in any thread.

    What spells a special token in a message or a tool is marked before the template sees it, and is
    text in the prompt: so nobody's words can end a turn and forge another. `parses_control_tokens`
    switches that off.
    """

    def __init__(
        self,
        files: ChatTemplateFiles,
        special_texts: Collection[str],
        *,
        parses_control_tokens: bool = False,
    ) -> None:
        self.files = files
        self._control_tokens = _ControlTokens(() if parses_control_tokens else special_texts)
        self._renderers: LifoQueue[Renderer] = LifoQueue()
        self._limiter = anyio.CapacityLimiter(NUM_RENDERERS)
        if files.templates:
            self._renderers.put(Renderer())

    @classmethod
    def load(
        cls,
        folder: str,
        special_texts: Collection[str],
        *,
        parses_control_tokens: bool,
        tokenizer_config: str | None = None,
    ) -> ChatTemplate:
        """The template of the model in a folder. Raise OSError or ValueError if it is broken."""
        given = Path(tokenizer_config) if tokenizer_config else None
        files = ChatTemplateFiles.read(Path(folder), given)
        return cls(files, special_texts, parses_control_tokens=parses_control_tokens)

    async def render(self, prompt: ChatPrompt) -> list[Piece]:
        """Return the prompt's text, in parts. Raise ValidationError if that cannot be done, and
        UnavailableError if the processes for it are lost.
        """
        template = self.files.template(with_tools=prompt.tools is not None)
        if template is None:
            raise ValidationError(
                "the model has no chat template, so `messages` cannot be made a prompt: "
                "use a route that takes the prompt's text"
            )
        if taken := sorted(RESERVED & prompt.variables.keys()):
            raise ValidationError(f"`chat_template_kwargs` must not have `{taken[0]}`")
        # In a thread from here, for a chat may be long. A client that leaves does not wait; the
        # thread gives the renderer back by itself.
        return await anyio.to_thread.run_sync(
            lambda: self._pieces(prompt, template), abandon_on_cancel=True, limiter=self._limiter
        )

    def mentions(self, word: str) -> bool:
        """Whether the text of a template has a word in it."""
        return any(word in template for template in self.files.templates.values())

    def close(self) -> None:
        """End the processes that wait for work."""
        with suppress(Empty):
            while True:
                self._renderers.get_nowait().close()

    def _pieces(self, prompt: ChatPrompt, template: str) -> list[Piece]:
        marks = self._control_tokens.marks(prompt)
        request = RenderRequest(
            template=template,
            messages=marks.replace(prompt.messages),
            tools=marks.replace(prompt.tools),
            documents=marks.replace(prompt.documents),
            add_generation_prompt=prompt.add_generation_prompt,
            continue_final_message=prompt.continue_final_message,
            variables={**self.files.special_tokens, **marks.replace(prompt.variables)},
        )
        try:
            return marks.pieces(self._render(request))
        except UnicodeEncodeError:
            raise ValidationError(f"`{_not_unicode(prompt)}` is not valid Unicode text") from None

    def _render(self, request: RenderRequest) -> str:
        try:
            try:
                rendering = self._render_in(self._idle_renderer(), request)
            except RendererLostError as error:
                logger.error("a process that renders chats was lost (%s); starting another", error)
                rendering = self._render_in(Renderer(), request)
        except RendererError as error:
            raise ValidationError(f"`messages`: the chat template failed: {error}") from None
        except RendererLostError:
            raise UnavailableError("Chats cannot be rendered at the moment") from None
        if rendering.error is not None:
            raise ValidationError(f"`messages`: the chat template failed: {rendering.error}")
        return rendering.text

    def _idle_renderer(self) -> Renderer:
        try:
            return self._renderers.get_nowait()
        except Empty:
            return Renderer()

    def _render_in(self, renderer: Renderer, request: RenderRequest) -> Rendering:
        """Render in a process, which is kept if it is still of use."""
        try:
            rendering = renderer.render(request, RENDER_SECONDS)
        except UnicodeEncodeError:  # it has not been sent
            self._renderers.put(renderer)
            raise
        except BaseException:
            renderer.close()
            raise
        self._renderers.put(renderer)
        return rendering


class _ControlTokens:
    """Finds special tokens in what clients say."""

    def __init__(self, texts: Collection[str]) -> None:
        longest_first = sorted((text for text in texts if text), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def marks(self, prompt: ChatPrompt) -> _Marks:
        """Those of one chat. Raise ValidationError if no characters are left to mark them with."""
        strings = [
            string for name, value in prompt.fields.items() for string in _strings(name, value)
        ]
        found = {match[0] for string in strings for match in self._pattern.finditer(string)}
        if not found:
            return _Marks({}, self._pattern)
        for first in PLACEHOLDERS:
            plane = re.compile(f"[{chr(first)}-{chr(first + PLANE_SIZE - 1)}]")
            if len(found) <= PLANE_SIZE and not any(map(plane.search, strings)):
                characters = {text: chr(first + i) for i, text in enumerate(sorted(found))}
                return _Marks(characters, self._pattern)
        raise ValidationError("`messages` has private characters of too many planes")


class _Marks:
    """One private character for each special token that a chat's messages spell."""

    def __init__(self, characters: dict[str, str], pattern: re.Pattern[str]) -> None:
        self._characters = characters
        self._texts = {character: text for text, character in characters.items()}
        self._pattern = pattern

    def replace(self, value: Any) -> Any:  # noqa: ANN401 - JSON
        """The same value with characters in place of special tokens."""
        if not self._characters:
            return value
        return _mapped(
            value, lambda text: self._pattern.sub(lambda m: self._characters[m[0]], text)
        )

    def pieces(self, text: str) -> list[Piece]:
        """A rendered text, its characters replaced by what they stand for."""
        if not self._texts:
            return [Piece(text)]
        parts = re.split(f"([{''.join(map(re.escape, self._texts))}])", text)
        return [
            Piece(self._texts[part], is_plain=True) if i % 2 else Piece(part)
            for i, part in enumerate(parts)
            if part
        ]


def _strings(field: str, value: object, levels: int = MAX_NESTING) -> list[str]:
    """All strings in a field's JSON value but the names of its own fields. Raise ValidationError if
    it is nested deeper, for what comes next goes down into it, too.
    """
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list | tuple):
        return []
    if not levels:
        raise ValidationError(f"`{field}` must not be nested deeper than {MAX_NESTING}")
    return [text for child in value for text in _strings(field, child, levels - 1)]


def _not_unicode(prompt: ChatPrompt) -> str:
    """The field of a chat that has half of a character in it, as JSON can escape it."""
    for name, value in prompt.fields.items():
        try:
            msgspec.json.encode(value)
        except UnicodeEncodeError:
            return name
    raise AssertionError("a field was not valid")


def _mapped(value: Any, change: Callable[[str], str]) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _mapped(child, change) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(child, change) for child in value]
    return value
