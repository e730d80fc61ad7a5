"""What a model is told of tools, and how a chat in which some were called is put to it."""

from __future__ import annotations

from typing import Any, cast

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from tokenloom_engine.constraints.spec import ConstraintKind, ConstraintSpec
from tokenloom_router.chat_template import ChatPrompt
from tokenloom_router.errors import ValidationError
from tokenloom_server.answer_form import AnswerForm, AnswerPlan
from tokenloom_server.reasoning import ReasoningTags
from tokenloom_server.tools.formats import pick_format
from tokenloom_server.tools.tool import Tool, ToolChoice
from tokenloom_server.tools.tool_prompt import (
    Message,
    flatten_calls,
    flatten_results,
    instruction,
)

ADD = Tool(number=0, name="add", description="Adds", parameters={"properties": {"x": {}}})
AUTO = ToolChoice(tools=(ADD,), mode="auto")
NONE = ToolChoice()
PLAIN = "{% for message in messages %}{{ message.content }} has tools{% endfor %}"
NATIVE = "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}"
UNKNOWN = "{%- if tools is defined %}CALL{% endif %}"


def call(id: str, arguments: dict[str, int], name: str = "add") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


HISTORY: list[Message] = [
    {"role": "user", "content": "Add"},
    {"role": "assistant", "content": "", "tool_calls": [call("a", {"x": 1}), call("b", {})]},
    {"role": "tool", "tool_call_id": "a", "content": "3"},
    {"role": "tool", "tool_call_id": "b", "content": "4"},
    {"role": "user", "content": "So?"},
]


def test_templates_that_do_not_get_words() -> None:
    format = pick_format("json", None)
    user, calls, results, last = flatten_calls(flatten_results(HISTORY), format)
    assert (user, last) == (HISTORY[0], HISTORY[-1])
    assert calls == {
        "role": "assistant",
        "content": '{"tool_call": {"name": "add", "arguments": {"x": 1}}}\n'
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
    told = form.prompt(ChatPrompt(messages=messages), AUTO).messages
    texts = [instruction(form.format, AUTO) in message["content"] for message in told]
    assert texts.index(True) == place and texts.count(True) == 1
    assert form.prompt(ChatPrompt(messages=messages), NONE).messages == messages


def test_who_is_told_what() -> None:
    chat = ChatPrompt(messages=[{"role": "user", "content": "Add"}, *HISTORY[1:3]])
    plain, native, unknown = (
        AnswerForm(template, "auto", None).prompt(chat, AUTO)
        for template in (PLAIN, NATIVE, UNKNOWN)
    )
    assert native.messages == chat.messages
    for prompt in (plain, unknown):
        first = prompt.messages[0]["content"]
        assert '"tool_call"' in first and first.endswith("Add")
    assert plain.tools is None and native.tools == unknown.tools == [
        {
            "type": "function",
            "function": {
                "name": "add",
                "description": "Adds",
                "parameters": {"properties": {"x": {}}},
            },
        }
    ]
    for choice in (NONE, ToolChoice(tools=(ADD,), mode="none")):
        assert AnswerForm(NATIVE, "auto", None).prompt(chat, choice).tools is None


CALLS_ALONE = (
    "{% for m in messages %}{% if m.tool_calls %}{% for c in m['tool_calls'] %}"
    "<tool_call>{{ c.function.name }}{{ c.function.arguments | tojson }}</tool_call>{% endfor %}"
    "{% else %}{{ m.role }}: {{ m.content }}\n{% endif %}{% endfor %}"
)
CALLS_AND_RESULTS = CALLS_ALONE.replace(
    "{% else %}", "{% elif m['role'] == 'tool' %}({{ m.content }}){% else %}"
)
ADDED = (
    "{%- for m in messages %}{%- for c in m['tool_calls'] %}"
    "{{'<call>' + c['function']['name'] + ' ' + c['function']['arguments'] + '</call>'}}"
    "{%- endfor %}{%- if m['role'] == 'tool' %}{{ m['content'] }}{%- endif %}{%- endfor %}"
)


def rendered(template: str, choice: ToolChoice = NONE) -> str:
    chat = AnswerForm(template, "auto", None).prompt(ChatPrompt(messages=HISTORY), choice)
    assert chat.tools is None
    (text,), _ = cast(
        "tuple[list[str], object]",
        render_jinja_template(conversations=[chat.messages], chat_template=template),
    )
    return text


def test_a_template_that_renders_calls_and_knows_no_tools_renders_the_history() -> None:
    calls = '<tool_call>add{"x": 1}</tool_call><tool_call>add{}</tool_call>'
    results = "user: Result of add:\n3\n\nResult of add:\n4\n"
    assert rendered(CALLS_ALONE) == f"user: Add\n{calls}{results}user: So?\n"
    assert rendered(CALLS_AND_RESULTS) == f"user: Add\n{calls}(3)(4)user: So?\n"
    assert rendered(ADDED) == '<call>add {"x": 1}</call><call>add {}</call>34'
    flat = rendered("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert '{"tool_call": {"name": "add", "arguments": {"x": 1}}}' in flat


def test_such_a_template_names_the_form_of_calls() -> None:
    told = rendered(CALLS_AND_RESULTS, AUTO)
    assert told.startswith("user: You can call these functions:")
    assert '<tool_call>\n{"name": "NAME"' in told


def test_special_tokens_of_the_form_are_marks() -> None:
    form = AnswerForm(
        "{{ tools }} [TOOL_CALLS] [ARGS]", "auto", ReasoningTags("[THINK]", "[/THINK]")
    )
    plan = AnswerPlan(form, AUTO, is_open=False)
    for mark in ("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"):
        assert plan.is_mark(mark)
    assert not plan.is_mark("<|im_end|>")
    without = AnswerPlan(AnswerForm("{{ tools }} [TOOL_CALLS]", "auto", None), NONE, is_open=False)
    assert not without.is_mark("[TOOL_CALLS]")


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


@pytest.mark.parametrize(
    "value",
    [
        "{",
        "",
        '{"type": "boolean"}}, {"type": "any_text"',
        '{"type": "boolean"} {}',
        "{'type': 'boolean'}",
        '{"type": NaN}',
    ],
)
def test_a_schema_that_is_no_json_does_not_become_part_of_a_tag(value: str) -> None:
    for form, choice in (
        (AnswerForm(None, "auto", None), AUTO),
        (AnswerForm(None, "auto", ReasoningTags("<t>", "</t>")), NONE),
    ):
        with pytest.raises(ValidationError, match="grammar is not valid: "):
            form.constraint(choice, ConstraintSpec("json_schema", value), is_open=False)


@pytest.mark.parametrize("kind", ["json_schema", "regex", "choice", "grammar", "structural_tag"])
def test_a_constraint_that_is_no_unicode_is_to_blame_itself(kind: ConstraintKind) -> None:
    form = AnswerForm(None, "auto", None)
    with pytest.raises(ValidationError, match="`grammar` is not valid Unicode text"):
        form.constraint(AUTO, ConstraintSpec(kind, '"\ud800"'), is_open=False)


def test_ids_of_calls_are_unique_and_as_the_template_wants_them() -> None:
    form, mistral = AnswerForm(None, "auto", None), AnswerForm(None, "mistral", None)
    ids = {form.call_id() for _ in range(1000)}
    assert len(ids) == 1000 and all(id.startswith("call_") for id in ids)
    assert all(len(id) == 9 and id.isalnum() for id in (mistral.call_id(), mistral.call_id()))


@pytest.mark.parametrize(
    ("parameters", "allows_others"),
    [
        (None, False),
        ({"properties": {"x": {}}}, False),
        ({"type": "object", "properties": {}, "required": []}, False),
        ({}, True),
        ({"type": "object"}, True),
        ({"properties": {"x": {}}, "additionalProperties": True}, True),
        ({"properties": {"x": {}}, "anyOf": [{"required": ["x"]}]}, True),
    ],
)
def test_a_function_takes_the_arguments_that_it_names(
    parameters: dict[str, Any] | None, allows_others: bool
) -> None:
    schema = Tool(number=0, name="f", parameters=parameters).schema
    assert schema["type"] == "object"
    assert (schema.get("additionalProperties") is not False) == allows_others
