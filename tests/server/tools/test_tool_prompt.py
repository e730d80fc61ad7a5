"""What a model is told of tools, and how a chat in which some were called is put to it."""

from __future__ import annotations

from typing import Any

import pytest

from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_router.errors import ValidationError
from tokenloom_server.answer_form import AnswerForm, explained
from tokenloom_server.reasoning import ReasoningTags
from tokenloom_server.tools.formats import pick_format
from tokenloom_server.tools.tool import Tool, ToolChoice
from tokenloom_server.tools.tool_prompt import (
    Message,
    instruction,
    native_messages,
    plain_messages,
    tool_bodies,
)

ADD = Tool(number=0, name="add", description="Adds", parameters={"properties": {"x": {}}})
AUTO = ToolChoice(tools=(ADD,), mode="auto")
NONE = ToolChoice()
PLAIN = "{% for message in messages %}{{ message.content }} has tools{% endfor %}"
NATIVE = "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}"
UNKNOWN = "{%- if tools is defined %}CALL{% endif %}"


def call(id: str, arguments: str, name: str = "add") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


HISTORY: list[Message] = [
    {"role": "user", "content": "Add"},
    {"role": "assistant", "content": "", "tool_calls": [call("a", '{"x":1}'), call("b", "")]},
    {"role": "tool", "tool_call_id": "a", "content": "3"},
    {"role": "tool", "tool_call_id": "b", "content": "4"},
    {"role": "user", "content": "So?"},
]


@pytest.mark.parametrize(
    ("text", "arguments"), [('{"x":3}', {"x": 3}), ("", {}), ("not json", "not json")]
)
def test_templates_that_know_tools_get_arguments_as_objects(text: str, arguments: object) -> None:
    messages: list[Message] = [{"role": "assistant", "tool_calls": [call("a", text)]}]
    (message,) = native_messages(messages)
    assert message["tool_calls"][0]["function"] == {"name": "add", "arguments": arguments}
    assert messages[0]["tool_calls"][0]["function"]["arguments"] == text, "nothing is changed"


def test_templates_that_do_not_get_words() -> None:
    format = pick_format("json", None)
    user, calls, results, last = plain_messages(HISTORY, format)
    assert (user, last) == (HISTORY[0], HISTORY[-1])
    assert calls == {
        "role": "assistant",
        "content": '{"tool_call": {"name": "add", "arguments": {"x":1}}}\n'
        '{"tool_call": {"name": "add", "arguments": {}}}',
    }
    assert results == {"role": "user", "content": "Result of add:\n3\n\nResult of add:\n4"}


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}], 0),
        ([{"role": "assistant", "content": "Hm"}, {"role": "user", "content": "Hi"}], 1),
        ([{"role": "assistant", "content": "Hm"}], 0),
    ],
)
def test_the_instruction_has_its_place(messages: list[Message], place: int) -> None:
    form = AnswerForm(PLAIN, "auto", None)
    told = form.messages(messages, AUTO)
    texts = [instruction(form.format, AUTO) in message["content"] for message in told]
    assert texts.index(True) == place and texts.count(True) == 1
    assert form.messages(messages, NONE) == messages


def test_who_is_told_what() -> None:
    plain, native, unknown = (AnswerForm(t, "auto", None) for t in (PLAIN, NATIVE, UNKNOWN))
    assert not plain.template_tools(AUTO)
    assert native.template_tools(AUTO) and unknown.template_tools(AUTO)
    assert not native.template_tools(NONE) and not native.template_tools(
        ToolChoice(tools=(ADD,), mode="none")
    )
    ask: list[Message] = [{"role": "user", "content": "Add"}]
    assert native.messages(ask, AUTO) == ask
    for form in (plain, unknown):
        (message,) = form.messages(ask, AUTO)
        assert '"tool_call"' in message["content"] and message["content"].endswith("Add")
    assert tool_bodies([Tool(number=0, name="now")]) == [
        {
            "type": "function",
            "function": {
                "name": "now",
                "parameters": {
                    "type": "object",
                    "properties": {},
                    "additionalProperties": False,
                },
            },
        }
    ]


def test_special_tokens_of_the_form_are_marks() -> None:
    form = AnswerForm(
        "{{ tools }} [TOOL_CALLS] [ARGS]", "auto", ReasoningTags("[THINK]", "[/THINK]")
    )
    for mark in ("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"):
        assert form.is_mark(mark)
    assert not form.is_mark("<|im_end|>")


def test_a_constraint_stays_as_it_is_where_nothing_stands_beside_the_text() -> None:
    spec = ConstraintSpec("regex", "a+")
    assert AnswerForm(None, "auto", None).constraint(NONE, spec, is_open=False) is spec
    thinking = AnswerForm(None, "auto", ReasoningTags("<t>", "</t>"))
    assert thinking.constraint(NONE, None, is_open=True) is None
    wrapped = thinking.constraint(NONE, ConstraintSpec("json_object", "", "[ ]?"), is_open=True)
    assert wrapped is not None and wrapped.kind == "structural_tag"
    assert wrapped.whitespace_pattern == "[ ]?"


@pytest.mark.parametrize("value", ["{", "{}", '{"structures":[{}],"triggers":["a"]}', "[]"])
def test_a_broken_tag_is_refused(value: str) -> None:
    thinking = AnswerForm(None, "auto", ReasoningTags("<t>", "</t>"))
    with pytest.raises(ValidationError, match="grammar is not valid"):
        thinking.constraint(NONE, ConstraintSpec("structural_tag", value), is_open=False)


def test_ids_of_calls_are_unique_and_as_the_template_wants_them() -> None:
    form, mistral = AnswerForm(None, "auto", None), AnswerForm(None, "mistral", None)
    ids = {form.call_id() for _ in range(1000)}
    assert len(ids) == 1000 and all(id.startswith("call_") for id in ids)
    assert all(len(id) == 9 and id.isalnum() for id in (mistral.call_id(), mistral.call_id()))


def test_what_is_said_of_the_grammar_is_said_of_the_tool() -> None:
    message = "grammar is not valid: format.tags[0].content.tags[0].content.json_schema: Invalid"
    assert explained(message, AUTO) == "tools[0].function.parameters: Invalid"
    assert explained("grammar is not valid: too deep", AUTO) == "grammar is not valid: too deep"
