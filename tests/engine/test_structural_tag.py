"""Structural tags: which texts each format allows, token by token, and why one is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.engine.clocks import manual_latency
from tests.engine.running import run, submission
from tokenloom_engine.constraints.base import Constraint, InvalidConstraintError
from tokenloom_engine.constraints.factory import ConstraintFactory
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.engine import Engine

VOCAB_SIZE = 49152
EOS = 2
CALL = 13
"""<jupyter_code>, a special token."""
Json = dict[str, Any]
Accepts = Callable[[str], bool]
"""Whether a text is allowed token by token, and may end."""
Load = Callable[[ConstraintSpec], Accepts]

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
ANY: Json = {"type": "any_text"}
WEATHER: Json = {
    "type": "tag",
    "begin": "<function=weather>",
    "content": {"type": "json_schema", "json_schema": CITY},
    "end": "</function>",
}
NOTE: Json = {"type": "tag", "begin": "<function=note>", "content": ANY, "end": "</function>"}
CALLS: Json = {"type": "triggered_tags", "triggers": ["<function="], "tags": [WEATHER, NOTE]}
LIST: Json = {"type": "tags_with_separator", "tags": [WEATHER, NOTE], "separator": ", "}
ROME = '<function=weather>{"city":"Rome"}</function>'
MILK = "<function=note>milk < 2 l</function>"


def text(value: str) -> Json:
    return {"type": "const_string", "value": value}


def regex(pattern: str) -> Json:
    return {"type": "regex", "pattern": pattern}


def grammar(lines: str, **fields: str) -> Json:
    return {"type": "grammar", "grammar": lines, **fields}


def tag(begin: str, content: Json, end: str | Sequence[str] | Json) -> Json:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def of(kind: str, *elements: Json) -> Json:
    return {"type": kind, "elements": elements}


def some(kind: str, content: Json, **fields: int) -> Json:
    return {"type": kind, "content": content, **fields}


def spec(format: Json, **fields: Any) -> ConstraintSpec:  # noqa: ANN401 - any of the spec's
    return ConstraintSpec("structural_tag", json.dumps({"format": format}), **fields)


@pytest.fixture(scope="module")
def tokenizer(tokenizer_file: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tokenizer_file))


@pytest.fixture(scope="module")
def factory(tokenizer_file: Path) -> ConstraintFactory:
    return ConstraintFactory.for_tokenizer(
        tokenizer_file.read_text(), VOCAB_SIZE, [EOS], latency=manual_latency()
    )


@pytest.fixture
def load(factory: ConstraintFactory, tokenizer: Tokenizer) -> Load:
    def load(spec: ConstraintSpec) -> Accepts:
        assert factory.validate(spec) == []
        return lambda text: _accepts(
            factory, _constraint(factory, spec), tokenizer.encode(text).ids
        )

    return load


@pytest.mark.parametrize(
    ("format", "whole", "others"),
    [
        (text("so"), ["so"], ["", "s", "sos"]),
        (text(""), [""], ["s"]),
        (
            {"type": "json_schema", "json_schema": CITY, "style": "json", "excludes": []},
            ['{"city":"Rome"}'],
            ['{"city": "Rome"}', '{"city":1}', '{"city":"Rome"} '],
        ),
        ({"type": "json_schema", "json_schema": True}, ["1", '{"a":[]}'], ["", "a"]),
        (regex("[a-c]+/[0-9]"), ["ab/1"], ["ab/", "ab/12", "x"]),
        (grammar('root ::= "a" root "b" | "x"'), ["x", "aaxbb"], ["ax", "xb"]),
        (grammar('start: "a" start "b" | "x"', syntax="lark"), ["x", "axb"], ["ax"]),
        (ANY, ["", "anything\nat all, é 🙂"], []),
        ({**ANY, "excludes": ["no", "nay"]}, ["", "yes n", "nan"], ["no", "I say nay"]),
        (
            of("sequence", text("a"), regex("[bx]+"), text("x"), text("y")),
            ["abxxy"],
            ["axy", "abx"],
        ),
        (of("sequence", ANY, text("a"), text("b"), regex("[0-9]+")), ["a b a ab12"], ["a1", "ab"]),
        (of("sequence", ANY, WEATHER), [f"say: {ROME}", ROME], ["say", f"{ROME} so"]),
        (
            of("or", text("yes"), regex("no+"), WEATHER),
            ["yes", "nooo", ROME],
            ["yesno", "", "maybe"],
        ),
        (some("optional", text("a")), ["", "a"], ["aa"]),
        (some("star", WEATHER), ["", ROME, ROME * 3], [f"{ROME} "]),
        (some("plus", of("or", text("a"), text("b"))), ["a", "abba"], ["", "c"]),
        (some("repeat", NOTE, min=1, max=2), [MILK, MILK * 2], ["", MILK * 3]),
        (some("repeat", text("a"), min=2, max=-1), ["aa", "aaaa"], ["", "a"]),
        (tag("<b>", ANY, "</b>"), ["<b></b>", "<b>2 < 3</b>"], ["<b>x", "<b>x</b></b>", "b"]),
        (tag("<b>", ANY, ["</b>", "|"]), ["<b>x</b>", "<b>x|"], ["<b>x|</b>"]),
        (tag("<b>", text("x"), ["</b>", ""]), ["<b>x</b>", "<b>x"], ["<b>"]),
        (tag("<b>", regex(".+"), "</b>"), ["<b>x</b>"], ["<b></b>", "<b>x</b></b>"]),
        (tag("", of("or", ANY, WEATHER), "."), ["so.", f"{ROME}."], [".."]),
        (tag("<b>", of("sequence", text("x"), ANY), "."), ["<b>x.", "<b>xx."], ["<b>.", "<b>x.."]),
    ],
)
def test_formats(load: Load, format: Json, whole: list[str], others: list[str]) -> None:
    accepts = load(spec(format))
    assert [text for text in whole if not accepts(text)] == []
    assert [text for text in others if accepts(text)] == []


@pytest.mark.parametrize(
    ("fields", "whole", "others"),
    [
        (
            {},
            ["", "hi", "a < b <functio", ROME, f"So: {ROME} and {MILK}.", ROME * 2],
            ["<function=", "hi <function=x", f"{ROME} <function=weather>", "<function=weather>{}"],
        ),
        ({"stop_after_first": True}, ["", "hi", f"hi {MILK}"], [f"{MILK} more", ROME * 2]),
        ({"at_least_one": True}, [ROME, f"{ROME} hi {MILK} there"], ["", "hi", f"hi {ROME}"]),
        (
            {"at_least_one": True, "stop_after_first": True},
            [ROME, MILK],
            ["", f"hi {ROME}", f"{ROME}.", f"{ROME}{ROME}"],
        ),
        ({"excludes": ["milk"]}, ["mil", MILK], ["milk", f"{MILK} milk"]),
    ],
)
def test_triggered_tags(load: Load, fields: Json, whole: list[str], others: list[str]) -> None:
    accepts = load(spec({**CALLS, **fields}))
    assert [text for text in whole if not accepts(text)] == []
    assert [text for text in others if accepts(text)] == []


@pytest.mark.parametrize(
    ("fields", "whole", "others"),
    [
        ({}, ["", ROME, f"{ROME}, {MILK}, {ROME}"], [ROME * 2, f"{ROME}, ", "hi"]),
        ({"at_least_one": True}, [MILK, f"{MILK}, {ROME}"], [""]),
        ({"stop_after_first": True}, ["", ROME], [f"{ROME}, {MILK}"]),
        ({"separator": ""}, ["", ROME * 3], [f"{ROME}, {ROME}"]),
    ],
)
def test_tags_with_separator(load: Load, fields: Json, whole: list[str], others: list[str]) -> None:
    accepts = load(spec({**LIST, **fields}))
    assert [text for text in whole if not accepts(text)] == []
    assert [text for text in others if accepts(text)] == []


def test_free_text_with_calls_inside_a_tag_ends_with_the_tag(load: Load) -> None:
    thought = tag("<think>", CALLS, "</think>")
    accepts = load(spec(of("sequence", thought, {**CALLS, "at_least_one": True})))
    assert accepts(f"<think>hm {ROME} so </think>{ROME} done")
    assert accepts(f"<think></think>{MILK}")
    assert not accepts(f"<think>hm</think> {ROME}")
    assert not accepts(f"<think>hm {ROME} so")


def test_stopping_after_the_first_tag_inside_a_tag(load: Load) -> None:
    accepts = load(spec(tag("[", {**CALLS, "stop_after_first": True}, "]")))
    assert accepts("[hm]") and accepts(f"[hm {ROME}]") and accepts("[]")
    assert not accepts(f"[hm {ROME} so]")


@pytest.mark.parametrize("schema", [CITY, json.dumps(CITY)])
@pytest.mark.parametrize("head", [{}, {"type": "structural_tag"}])
def test_the_older_form(load: Load, schema: Json | str, head: Json) -> None:
    structure = {"begin": "<function=weather>", "schema": schema, "end": "</function>"}
    value = {**head, "structures": [structure], "triggers": ["<function="]}
    accepts = load(ConstraintSpec("structural_tag", json.dumps(value)))
    assert accepts("") and accepts(f"So: {ROME}{ROME}.")
    assert not accepts("<function=") and not accepts("<function=weather>{}</function>")


def test_special_tokens_are_tokens(load: Load, factory: ConstraintFactory) -> None:
    call = tag("<jupyter_code>call", {"type": "json_schema", "json_schema": CITY}, "<empty_output>")
    calls = {"type": "triggered_tags", "triggers": ["<jupyter_code>"], "tags": [call]}
    accepts = load(spec(calls))
    assert accepts('hi <jupyter_code>call{"city":"Rome"}<empty_output> and so on')
    assert not accepts("hi <jupyter_code>") and not accepts("hi <jupyter_output>")
    inside = load(spec(tag("<jupyter_code>", ANY, ["<empty_output>", "."])))
    assert inside("<jupyter_code>x<empty_output>") and inside("<jupyter_code>x.")
    spelled = [29, *_constraint(factory, spec(text("jupyter_code>"))).forced_tokens()]
    assert not _accepts(factory, _constraint(factory, spec(text("<jupyter_code>"))), spelled)


def test_special_tokens_by_name_and_id(load: Load) -> None:
    code = {"type": "token", "token": "<jupyter_code>"}
    output = {"type": "token", "token": 14}
    accepts = load(spec(of("sequence", {**tag("", ANY, output), "begin": code}, code)))
    assert accepts("<jupyter_code>x<jupyter_output><jupyter_code>")
    assert not accepts("<jupyter_code>x<jupyter_output>")


def test_an_added_token_that_is_not_special_is_text(tokenizer_file: Path) -> None:
    data = json.loads(tokenizer_file.read_text().replace("<jupyter_code>", "[CALL]"))
    next(token for token in data["added_tokens"] if token["id"] == CALL)["special"] = False
    factory = ConstraintFactory.for_tokenizer(
        json.dumps(data), VOCAB_SIZE, [EOS], latency=manual_latency()
    )
    tokenizer = Tokenizer.from_str(json.dumps(data))
    call = tag("[CALL]", {"type": "json_schema", "json_schema": CITY}, "!")
    calls = spec({"type": "triggered_tags", "triggers": ["[CALL]"], "tags": [call]})
    ids = tokenizer.encode('hi [CALL]{"city":"Rome"}!').ids
    assert CALL in ids
    assert _accepts(factory, _constraint(factory, calls), ids)
    assert not _accepts(factory, _constraint(factory, calls), tokenizer.encode("hi [CALL]").ids)


def test_what_a_trigger_leaves_no_choice_about_is_forced(
    factory: ConstraintFactory, tokenizer: Tokenizer
) -> None:
    constraint = _constraint(factory, spec({**CALLS, "tags": [WEATHER]}))
    for id in tokenizer.encode("Rain? <function").ids:
        assert constraint.accept_tokens([id])
        assert constraint.forced_tokens() == []
    assert constraint.accept_tokens(tokenizer.encode("=").ids)
    forced = tokenizer.decode(constraint.forced_tokens())
    assert 'weather>{"city":"'.startswith(forced) and forced.startswith('weather>{"')
    assert constraint.accept_tokens(tokenizer.encode('weather>{"city":"Rome"}').ids)
    assert tokenizer.decode(constraint.forced_tokens()).startswith("</function")


def test_an_eos_token_that_a_tag_names_can_be_taken_back(
    factory: ConstraintFactory, tokenizer: Tokenizer
) -> None:
    named = spec(of("sequence", text("so"), {"type": "token", "token": EOS}, text("on")))
    so = tokenizer.encode("so").ids
    constraint = _constraint(factory, named)
    assert constraint.accept_tokens([*so, EOS])
    constraint.rollback(1)
    assert constraint.accept_tokens([EOS])
    constraint.reset()
    assert constraint.accept_tokens([*so, EOS])


def test_white_space_is_that_of_the_request(load: Load) -> None:
    accepts = load(spec(CALLS, whitespace_pattern="[ ]?"))
    assert accepts('So: <function=weather>{"city": "Rome"}</function> etc')
    assert not accepts('So: <function=weather>{"city":  "Rome"}</function>')


def test_a_prefix_stands_before_the_free_text(load: Load) -> None:
    accepts = load(spec(CALLS, prefix="pre <"))
    assert accepts(f"pre < and {ROME} etc") and accepts("pre <")
    assert not accepts("pr") and not accepts(ROME) and not accepts("pre <<function=")


def test_lenient_schemas_warn_with_their_path(factory: ConstraintFactory) -> None:
    schema = {"type": "array", "uniqueItems": True}
    format = tag("<", {"type": "json_schema", "json_schema": schema}, ">")
    warnings = factory.validate(spec(format, lenient=True))
    assert len(warnings) == 1
    assert warnings[0].startswith("format.content.json_schema: ") and "uniqueItems" in warnings[0]
    with pytest.raises(InvalidConstraintError, match=r"^format.content.json_schema: .*uniqueItems"):
        factory.validate(spec(format))


BAD_SCHEMA: Json = {"type": "json_schema", "json_schema": {"type": "strng"}}


@pytest.mark.parametrize(
    ("format", "reason"),
    [
        (of("sequence", text("a"), BAD_SCHEMA), r"format.elements\[1\].json_schema: .*strng"),
        ({**CALLS, "tags": [tag("<function=x>", BAD_SCHEMA, "x")]}, r"format.tags\[0\].content.js"),
        ({"type": "json_schema", "json_schema": "{}"}, "format.json_schema: .*object"),
        ({"type": "json_schema", "json_schema": {}, "any_order": True}, "format.any_order: "),
        (
            {"type": "json_schema", "json_schema": {}, "style": "qwen_xml"},
            "format.style: .*qwen_xml",
        ),
        (some("star", regex("a(")), "format.content.pattern: "),
        (regex("a\\"), "format.pattern: "),
        (tag("<", grammar("root ::= nowhere"), ">"), "format.content.grammar: .*nowhere"),
        (grammar('{"grammars": []}'), "format.grammar: "),
        (grammar('start: "a"', syntax="ebnf"), "format.syntax: "),
        (of("or", text("a"), {"type": "qwen_xml_parameter", "json_schema": {}}), "qwen_xml_param"),
        (of("or", text("a"), {"type": "nothing"}), r"format.elements\[1\].type: .*nothing"),
        (of("or"), "format.elements: "),
        ({**ANY, "max_tokens": 5}, "format.max_tokens: "),
        ({**ANY, "max_chars": 5}, "format.max_chars: "),
        ({**tag("<", ANY, ">"), "middle": "-"}, "format: .*`middle`"),
        ({"type": "tag", "begin": "<", "content": ANY}, "format: .*`end`"),
        ({"type": "token", "token": "<nobody>"}, "format.token: .*<nobody>"),
        ({"type": "token", "token": 999}, "format.token: .*999"),
        (tag("<", ANY, ""), "format.end: "),
        (
            of("sequence", ANY, {"type": "json_schema", "json_schema": CITY}),
            r"format.elements\[0\]",
        ),
        (some("plus", of("sequence", WEATHER, ANY)), r"format.content.elements\[1\]: "),
        (some("repeat", text("a"), min=3, max=2), "format.max: "),
        ({**CALLS, "triggers": ["<call"]}, r"format.tags\[0\].begin: .* 0 triggers"),
        ({**CALLS, "triggers": ["<", "<function"]}, r"format.tags\[0\].begin: .* 2 triggers"),
        ({**CALLS, "triggers": ["<function=", "<call"]}, r"format.triggers\[1\]: "),
        ({**CALLS, "triggers": [""]}, r"format.triggers\[0\]: "),
        ({**CALLS, "triggers": []}, "format.triggers: "),
        ({**CALLS, "tags": []}, "format.tags: "),
        (
            {**CALLS, "triggers": ["<jupyter"], "tags": [tag("<jupyter_code>", ANY, ".")]},
            r"format.tags\[0\].begin: .*special token",
        ),
        (tag("<a>", CALLS, "<function=/>"), "format.content.triggers: .*<function="),
    ],
)
def test_what_is_wrong_is_said_with_its_path(
    factory: ConstraintFactory, format: Json, reason: str
) -> None:
    with pytest.raises(InvalidConstraintError, match=reason) as raised:
        factory.validate(spec(format))
    assert "format" in str(raised.value)
    with pytest.raises(InvalidConstraintError):
        factory.compile(spec(format)).result()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ('{"format"', "not JSON"),
        ("[]", "object"),
        ("{}", "`format`"),
        ('{"format": {"type": "any_text"}, "extra": 1}', "`extra`"),
        ('{"type": "other", "format": {"type": "any_text"}}', "type: .*other"),
        ('{"structures": [{"begin": "<a>", "schema": {}}], "triggers": ["<"]}', r"structures\[0\]"),
        (
            '{"structures": [{"begin": "<", "schema": {"type": 1}, "end": ""}], "triggers": ["<"]}',
            r"^structures\[0\].schema: ",
        ),
        (
            '{"structures": [{"begin": "<a>", "schema": {}, "end": ""}], "triggers": ["["]}',
            r"^structures\[0\].begin: ",
        ),
    ],
)
def test_what_is_no_structural_tag_is_refused(
    factory: ConstraintFactory, value: str, reason: str
) -> None:
    with pytest.raises(InvalidConstraintError, match=reason):
        factory.validate(ConstraintSpec("structural_tag", value))


@pytest.mark.parametrize("forced_tokens", [True, False])
def test_an_eos_token_that_a_tag_names_ends_the_text(engine: Engine, forced_tokens: bool) -> None:
    end = spec(of("sequence", text("so"), {"type": "token", "token": EOS}, text(" on")))
    request = submission(1, [17, 18], constraint=end, forced_tokens=forced_tokens)
    result = run(engine, [request])[1]
    assert result.ids[-1] == EOS and result.text == "so"
    assert result.finish is not None and result.finish.reason == "eos_token"


def _constraint(factory: ConstraintFactory, spec: ConstraintSpec) -> Constraint:
    return factory.get_constraint(factory.compile(spec).result())


def _accepts(factory: ConstraintFactory, constraint: Constraint, ids: Sequence[int]) -> bool:
    """Whether the masks allow these tokens and then EOS."""
    backend = factory.compile(ConstraintSpec("regex", "a")).result().backend
    bitmask = factory.allocate_bitmask(1)
    for id in (*ids, EOS):
        backend.fill_bitmasks([(constraint, 0)], bitmask)
        assert constraint.error is None
        if not bitmask[0, id // 32] >> (id % 32) & 1:
            return False
        if id != EOS or id in ids:
            assert constraint.accept_tokens([id])
    return True
