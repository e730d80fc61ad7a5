"""Each format: its grammar allows what its models write, and its parser reads it, however cut."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer

from tokenloom_engine.constraints.base import InvalidConstraintError
from tokenloom_engine.constraints.factory import ConstraintFactory
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_server.tools.call_format import CallFormat
from tokenloom_server.tools.call_grammar import call_grammar, remark_on_tool
from tokenloom_server.tools.call_parser import (
    CallArguments,
    CallEvent,
    CallParser,
    CallStart,
    Content,
)
from tokenloom_server.tools.formats import format_names, pick_format
from tokenloom_server.tools.tool import Choice, Tool, ToolChoice

Accepts = Callable[[dict[str, Any], str], bool]

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = (
    Tool(number=0, name="get", parameters={"properties": {"x": {"type": "number"}}}),
    Tool(number=1, name="get_weather", description="The weather", parameters=CITY),
    Tool(number=2, name="now"),
)
ROME = ("get_weather", '{"city":"Rome","days":2}')
QUOTES = ("get_weather", r'{"city":"a\"}]</tool_call>\\"}')
NOW = ("now", "{}")
FORMATS = {
    "hermes": pick_format("hermes", None),
    "llama3": pick_format("llama3", None),
    "mistral": pick_format("mistral", None),
    "mistral, newer": pick_format("auto", "[TOOL_CALLS] … [ARGS]"),
    "json": pick_format("json", None),
}
WRITTEN = {
    "hermes": '<tool_call>\n{"name": "get_weather", "arguments": {"city":"Rome","days":2}}\n'
    '</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "llama3": '{"name": "get_weather", "parameters": {"city":"Rome","days":2}}',
    "mistral": '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city":"Rome","days":2}}, '
    '{"name": "now", "arguments": {}}]',
    "mistral, newer": '[TOOL_CALLS]get_weather[ARGS]{"city":"Rome","days":2}'
    "[TOOL_CALLS]now[ARGS]{}",
    "json": '{"tool_call": {"name": "get_weather", "arguments": {"city":"Rome","days":2}}}\n'
    '{"tool_call": {"name": "now", "arguments": {}}}',
}
each_format = pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)


def choice(mode: Choice, **fields: Any) -> ToolChoice:  # noqa: ANN401
    return ToolChoice(tools=TOOLS, mode=mode, **fields)


@pytest.fixture(scope="module")
def accepts(tokenizer_file: Path) -> Accepts:
    """Whether a grammar allows a text, byte by byte, to its end."""
    text = tokenizer_file.read_text()
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    factory = ConstraintFactory.for_tokenizer(text, tokenizer.get_vocab_size(), [0])

    def accepts(format: dict[str, Any], text: str) -> bool:
        spec = ConstraintSpec("structural_tag", msgspec.json.encode({"format": format}).decode())
        factory.validate(spec)
        constraint = factory.lease(spec).result().constraint
        ids = tokenizer.encode(text).ids
        return constraint.validate_tokens([*ids, 0]) == len(ids) + 1

    return accepts


def read(format: CallFormat, pieces: list[str], *, is_due: bool = False) -> list[CallEvent]:
    """What the parser says of an answer, neighbours of a kind joined."""
    parser = CallParser(format, [tool.name for tool in TOOLS], is_due=is_due)
    events = [event for piece in pieces for event in parser.push(piece)] + parser.flush()
    joined: list[CallEvent] = []
    for event in events:
        match joined, event:
            case [*_, Content(before)], Content(text):
                joined[-1] = Content(before + text)
            case [*_, CallArguments(before)], CallArguments(text):
                joined[-1] = CallArguments(before + text)
            case _:
                joined.append(event)
    return joined


@pytest.mark.parametrize("name", WRITTEN)
def test_a_format_is_written_as_its_models_write_it(name: str) -> None:
    format = FORMATS[name]
    assert format.group([ROME, NOW] if format.separator is not None else [ROME]) == WRITTEN[name]


@each_format
def test_an_answer_may_be_text_calls_or_both(format: CallFormat, accepts: Accepts) -> None:
    grammar = call_grammar(format, choice("auto"))
    calls = format.group([ROME])
    for text in ("", "Just text: {} [1] <b>", calls, f"I look.\n{calls}"):
        assert accepts(grammar, text), text
    assert accepts(grammar, format.group([ROME, NOW])) == (format.separator is not None)
    for name, arguments in [("other", "{}"), ("get_weather", "{}"), ("now", '{"a":1}')]:
        if format.separator is None and name == "other":
            continue  # without a tool of that name, it is JSON for the user
        assert not accepts(grammar, format.group([(name, arguments)]))
    assert not accepts(grammar, f"{calls} and more text")


@each_format
def test_calls_may_be_due(format: CallFormat, accepts: Accepts) -> None:
    grammar = call_grammar(format, choice("required"))
    assert accepts(grammar, format.group([ROME])) and accepts(grammar, format.group([NOW]))
    assert not accepts(grammar, "") and not accepts(grammar, f"So: {format.group([ROME])}")
    named = call_grammar(format, choice("required", only="now", several=False))
    assert accepts(named, format.group([NOW])) and not accepts(named, format.group([ROME]))
    assert not accepts(named, format.group([NOW, NOW]))


@each_format
def test_text_beside_tools_may_have_its_own_grammar(format: CallFormat, accepts: Accepts) -> None:
    grammar = call_grammar(format, choice("auto"), {"type": "regex", "pattern": "[a-z]+"})
    assert accepts(grammar, "abc") and accepts(grammar, format.group([ROME]))
    assert not accepts(grammar, "ABC") and not accepts(grammar, f"abc{format.group([ROME])}")


@each_format
def test_the_parser_reads_an_answer_however_it_is_cut(format: CallFormat) -> None:
    calls = [QUOTES, ROME] if format.separator is not None else [QUOTES]
    said = "Well <tool, [TOOL, {\"tool: I'd look\n it up."
    expected: list[CallEvent] = [Content(said)]
    for name, arguments in calls:
        expected += [CallStart(name), CallArguments(arguments)]
    answer = f"{said}\n\n{format.group(calls)}"
    rng = random.Random(7)
    for _ in range(50):
        cuts = sorted(rng.sample(range(len(answer)), rng.randrange(len(answer))))
        pieces = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
        assert read(format, pieces) == expected, pieces


@each_format
def test_text_that_only_begins_like_a_call_is_text(format: CallFormat) -> None:
    start = format.opener or format.before_name
    text = f"so {start[:-1]}? {{}} {start[:-2]}"
    assert read(format, list(text)) == [Content(text)]


@each_format
def test_a_cut_answer_has_no_debris(format: CallFormat) -> None:
    """Cut anywhere, it is text before the call, or a call with the arguments so far."""
    answer = format.group([ROME])
    head = format.opener + format.begin("get_weather")
    for end in range(1, len(answer)):
        events = read(format, [answer[:end]], is_due=True)
        if end < len(head):
            assert events == []
            continue
        arguments = answer[len(head) : end][: len(ROME[1])]
        assert events == [CallStart("get_weather"), *([CallArguments(arguments)] * bool(arguments))]


@each_format
def test_a_call_is_complete_when_its_arguments_are(format: CallFormat) -> None:
    parser = CallParser(format, ["get_weather"], is_due=True)
    text = format.opener + format.begin("get_weather") + ROME[1]
    parser.push(text[:-1])
    assert not parser.is_complete
    parser.push(text[-1])
    assert parser.is_complete and parser.num_calls == 1


def test_the_format_follows_from_the_template() -> None:
    assert format_names() == ["hermes", "json", "llama3", "mistral"]
    assert pick_format("auto", "{{ tools }} <tool_call> …") == FORMATS["hermes"]
    for mark in ("ipython", "<|start_header_id|>"):
        llama = mark + ' {{ tools }} … {"name": …, "parameters": …}'
        assert pick_format("auto", llama) == FORMATS["llama3"]
    assert pick_format("auto", "{{ tools }} [TOOL_CALLS] [") == FORMATS["mistral"]
    assert pick_format("auto", "{{ tools }} [TOOL_CALLS][").opener == "[TOOL_CALLS]["
    assert pick_format("auto", "{{ tools }} in a format of its own").needs_prompt
    assert pick_format("auto", None).needs_prompt
    assert pick_format("hermes", "[TOOL_CALLS]") == FORMATS["hermes"], "the option outranks"


@each_format
def test_a_wrong_schema_is_blamed_by_its_path(format: CallFormat, accepts: Accepts) -> None:
    wrong = Tool(number=1, name="bad", parameters={"properties": {"a": {"type": "strng"}}})
    asked = ToolChoice(tools=(TOOLS[0], wrong), mode="auto")
    with pytest.raises(InvalidConstraintError) as caught:
        accepts(call_grammar(format, asked), "")
    remark = remark_on_tool(f"grammar is not valid: {caught.value}", asked)
    assert remark == ("`tools[1].function.parameters` (bad)", "Invalid type: strng")
    assert remark_on_tool("grammar is not valid: nested too deeply", asked) is None
