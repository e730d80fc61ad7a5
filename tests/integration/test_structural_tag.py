"""Free text with calls in it, over the real model."""

from __future__ import annotations

import json
import re

import httpx
import jsonschema
import pytest

from tests.integration.serving import Json, Server, body

SUM: Json = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
CITY: Json = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}
SCHEMAS = {"sum": SUM, "weather": CITY}
CALLS: Json = {
    "type": "triggered_tags",
    "triggers": ["<call="],
    "tags": [
        {
            "type": "tag",
            "begin": f"<call={name}>",
            "content": {"type": "json_schema", "json_schema": schema},
            "end": "</call>",
        }
        for name, schema in SCHEMAS.items()
    ],
}
OLDER_FORM = {
    "structures": [
        {"begin": f"<call={name}>", "schema": schema, "end": "</call>"}
        for name, schema in SCHEMAS.items()
    ],
    "triggers": ["<call="],
}
CALL = re.compile(r"<call=(\w+)>(.*?)</call>")
SHOTS = """\
Question: What is 2 plus 3?
Answer: I use <call=sum>{"a":2,"b":3}</call>

Question: What is the weather in Rome?
Answer: I use <call=weather>{"city":"Rome"}</call>

Question: What is 40 plus 2?
Answer:"""


def structural_tag(value: Json) -> Json:
    return {"type": "structural_tag", "value": value}


def test_a_call_is_due_even_if_the_model_would_not_make_one(server: Server) -> None:
    one = {"format": {**CALLS, "at_least_one": True, "stop_after_first": True}}
    for seed in range(3):
        result = server.generate(
            "Once upon a time",
            grammar=structural_tag(one),
            max_new_tokens=120,
            do_sample=True,
            seed=seed,
            details=True,
        )
        call = CALL.fullmatch(result["generated_text"])
        assert call is not None, result["generated_text"]
        jsonschema.validate(json.loads(call[2]), SCHEMAS[call[1]])
        assert result["details"]["finish_reason"] == "eos_token"
        assert result["details"]["tokens"][0].get("forced"), "any call begins alike"


@pytest.mark.parametrize("value", [{"format": CALLS}, OLDER_FORM])
def test_the_model_writes_freely_and_calls_when_it_likes(server: Server, value: Json) -> None:
    grammar = structural_tag(value)
    result = server.generate(SHOTS, grammar=grammar, max_new_tokens=60, stop=["\n"], details=True)
    text = result["generated_text"]
    call = CALL.search(text)
    assert call is not None and not text.startswith("<"), text
    jsonschema.validate(json.loads(call[2]), SCHEMAS[call[1]])
    tokens = result["details"]["tokens"]
    assert "forced" not in tokens[0] and any("forced" in token for token in tokens)


def test_what_is_wrong_is_said_with_its_path(server: Server) -> None:
    start = {"type": "const_string", "value": "A: "}
    wrong = {"type": "json_schema", "json_schema": {"type": "strng"}}
    value = {"format": {"type": "sequence", "elements": [start, wrong]}}
    parameters = {"grammar": structural_tag(value)}
    response = httpx.post(f"{server.url}/generate", json=body("Hi", parameters), timeout=60)
    assert response.status_code == 422
    assert "format.elements[1].json_schema: " in response.json()["error"]
    assert "strng" in response.json()["error"]
