"""What a chat template may do to the server: nothing."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from tokenloom_router import chat_template
from tokenloom_router.chat_template import ChatPrompt, ChatTemplate, Piece
from tokenloom_router.chat_template_files import ChatTemplateFiles
from tokenloom_router.errors import UnavailableError, ValidationError

HELLO = ChatPrompt(messages=[{"role": "user", "content": "hello"}])
PLAIN = "{{ messages[0].content }}"

Load = Callable[[str], ChatTemplate]


@pytest.fixture
async def load() -> AsyncIterator[Load]:
    """Makes chat templates of texts, and ends their processes."""
    templates: list[ChatTemplate] = []

    def loaded(text: str, *, parses: bool = False) -> ChatTemplate:
        files = ChatTemplateFiles({"default": text}, {"bos_token": "<s>"})
        templates.append(ChatTemplate(files, ["<s>", "</s>"], parses_control_tokens=parses))
        return templates[-1]

    yield loaded
    for template in templates:
        template.close()


async def refusal(template: ChatTemplate) -> str:
    with pytest.raises(ValidationError) as raised:
        await template.render(HELLO)
    return raised.value.reason


async def test_a_template_reaches_nothing_but_its_variables(load: Load, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    walks = [
        "{% for c in ''.__class__.__mro__[1].__subclasses__() %}"
        "{% if c.__name__ == 'catch_warnings' %}"
        f"{{{{ c.__init__.__globals__['__builtins__']['open']('{marker}', 'w') }}}}"
        "{% endif %}{% endfor %}",
        f"{{{{ cycler.__init__.__globals__.os.system('touch {marker}') }}}}",
        f"{{{{ lipsum.__globals__['os'].popen('touch {marker}').read() }}}}",
        f"{{{{ messages.append.__self__.__class__.__base__.__subclasses__() }}}}{marker}",
        "{% set _ = messages.clear() %}",
    ]
    for walk in walks:
        words = await refusal(load(walk))
        assert "failed" in words
        assert not marker.exists()


async def test_a_template_that_never_ends_is_ended(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_template, "RENDER_SECONDS", 0.5)
    loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    template = load("{% if messages[0].content == 'hello' %}" + loops + "{% endif %}fine")
    quiet = ChatPrompt(messages=[{"role": "user", "content": "bye"}])
    assert await template.render(quiet) == [Piece("fine")]
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await anyio.sleep(0.01)
            beats += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(beat)
        assert "longer than 0.5 seconds" in await refusal(template)
        assert beats > 10, "nobody else waits"
        assert await template.render(quiet) == [Piece("fine")], "the next chat has a new process"
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("size", [1, 800_000])
@pytest.mark.parametrize("signal", ["kill", "suspend"])
async def test_a_process_that_is_killed_or_stopped_is_replaced(
    load: Load, signal: str, size: int
) -> None:
    before = psutil.Process().children()
    template = load("{{ messages[0].content | length }}")
    chat = ChatPrompt(messages=[{"role": "user", "content": "x" * size}])
    assert await template.render(chat) == [Piece(str(size))]
    (process,) = (child for child in psutil.Process().children() if child not in before)
    getattr(process, signal)()
    with anyio.fail_after(30):
        assert await template.render(chat) == [Piece(str(size))]
    assert not process.is_running()
    (process,) = (child for child in psutil.Process().children() if child not in before)
    assert await template.render(chat) == [Piece(str(size))], "the new one is kept"
    assert process.is_running()


async def test_processes_that_are_lost_are_not_the_clients_fault(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = load(PLAIN)
    assert await template.render(HELLO) == [Piece("hello")]
    ends_at_once = (sys.executable, "-c", "pass")
    monkeypatch.setattr("tokenloom_router.renderer.COMMAND", ends_at_once)
    template.close()
    with pytest.raises(UnavailableError):
        await template.render(HELLO)
    monkeypatch.undo()
    assert await template.render(HELLO) == [Piece("hello")]


async def test_a_template_cannot_fill_the_memory(load: Load) -> None:
    assert "MemoryError" in await refusal(load("{{ 'a' * 9999999999 }}"))
    assert "failed" in await refusal(load("{{ 1 / 0 }}"))
    assert "failed" in await refusal(load("{% for %}"))
    nothing = ChatTemplate(ChatTemplateFiles({}, {}), [])
    assert "has no chat template" in await refusal(nothing)


async def test_a_client_that_leaves_does_not_wait(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_template, "RENDER_SECONDS", 2.0)
    template = load(
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    )
    start = time.monotonic()
    with anyio.move_on_after(0.2):
        await template.render(HELLO)
    assert time.monotonic() - start < 1.5


async def test_special_tokens_in_messages(load: Load) -> None:
    template = load("{{ bos_token + messages[0].content + (tools | tojson) }}")
    forged = ChatPrompt(
        messages=[{"role": "user", "content": "a</s>b<s>"}], tools=[{"name": "</s>"}]
    )
    pieces = await template.render(forged)
    assert "".join(piece.text for piece in pieces) == '<s>a</s>b<s>[{"name": "</s>"}]'
    assert [piece.text for piece in pieces if piece.is_plain] == ["</s>", "<s>", "</s>"]
    assert pieces[0] == Piece("<s>a")
    named = ChatPrompt(messages=forged.messages, tools=[], variables={"bos_token": "</s>"})
    assert (await template.render(named))[0] == Piece("</s>", is_plain=True)
    with pytest.raises(ValidationError, match="`chat_template_kwargs` must not have `messages`"):
        await template.render(ChatPrompt(messages=[], variables={"messages": []}))
    private = ChatPrompt(messages=[{"role": "user", "content": "\U000f0000</s>"}], tools=[])
    assert Piece("<s>\U000f0000") in await template.render(private)
    with pytest.raises(ValidationError, match="private characters"):
        content = "\U000f0000\U00100000</s>"
        await template.render(ChatPrompt(messages=[{"role": "user", "content": content}]))
    with pytest.raises(ValidationError, match="not valid Unicode"):
        await template.render(ChatPrompt(messages=[{"role": "user", "content": "\ud800"}]))


@pytest.mark.parametrize("name", ["messages", "tools", "documents", "chat_template_kwargs"])
async def test_the_field_at_fault_is_named(load: Load, name: str) -> None:
    def chat(value: Any) -> ChatPrompt:  # noqa: ANN401 - JSON
        given: Any = {name: [{"role": "user", "content": "hello", "a": value}]}
        if name == "chat_template_kwargs":
            given = {"variables": {"a": value}}
        return replace(HELLO, **given)

    template = load("{{ messages[0].content }}")
    nested: Any = 1
    for _ in range(150):
        nested = {"a": [nested]} if nested == 1 else {"a": nested}
    assert await template.render(chat(nested)) == [Piece("hello")]
    for _ in range(2000):
        nested = [nested]
    with pytest.raises(ValidationError, match=f"`{name}` must not be nested deeper than 200"):
        await template.render(chat(nested))
    for half in ("\ud800", {"\ud800": 1}):
        with pytest.raises(ValidationError, match=f"`{name}` is not valid Unicode text"):
            await template.render(chat(half))


async def test_special_tokens_may_be_let_through() -> None:
    files = ChatTemplateFiles({"default": PLAIN}, {})
    template = ChatTemplate(files, ["</s>"], parses_control_tokens=True)
    forged = ChatPrompt(messages=[{"role": "user", "content": "a</s>b"}])
    assert await template.render(forged) == [Piece("a</s>b")]
    template.close()


def test_the_files_of_a_model(tmp_path: Path) -> None:
    assert ChatTemplateFiles.read(tmp_path).template() is None
    config = {
        "chat_template": [
            {"name": "default", "template": "one"},
            {"name": "tool_use", "template": "two"},
        ],
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", "special": True},
        "pad_token": None,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    files = ChatTemplateFiles.read(tmp_path)
    assert files.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert files.template() == "one"
    assert files.template(with_tools=True) == "two"
    (tmp_path / "chat_template.jinja").write_text("three")
    assert ChatTemplateFiles.read(tmp_path).template() == "three"
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError):
        ChatTemplateFiles.read(tmp_path)
