"""Schemas with keywords that the constraint engine does not know: refused, or served on request."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.integration.serving import Json, Server, body

SCHEMA: Json = {
    "type": "object",
    "properties": {
        "tags": {
            "type": "array",
            "items": {"enum": ["a", "b"]},
            "minItems": 2,
            "maxItems": 2,
            "uniqueItems": True,
        },
        "size": {"enum": [1, 2], "not": {"const": 1}},
    },
    "required": ["tags", "size"],
    "additionalProperties": False,
}
FORMS: dict[str, Json] = {
    "json": {"type": "json", "value": SCHEMA},
    "text": {"type": "json", "value": json.dumps(SCHEMA)},
    "json_object": {"type": "json_object", "value": SCHEMA},
    "json_schema": {"type": "json_schema", "value": {"name": "x", "schema": SCHEMA}},
    "not strict": {
        "type": "json_schema",
        "value": {"name": "x", "schema": SCHEMA, "strict": False},
    },
}
WARNINGS = [
    'Unimplemented keys: ["not"] (at #/properties/size/not)',
    'Unimplemented keys: ["uniqueItems"] (at #/properties/tags/uniqueItems)',
]
REASON = 'grammar is not valid: Unimplemented keys: ["{}"] (at #/properties/{}/{})'


def _post(server: Server, path: str, grammar: Json, **parameters: Any) -> httpx.Response:  # noqa: ANN401
    given = {"grammar": grammar, "max_new_tokens": 40, **parameters}
    return httpx.post(server.url + path, json=body("As JSON: ", given), timeout=60)


@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/"])
@pytest.mark.parametrize("form", FORMS)
def test_without_lenient_it_is_refused_with_the_place(server: Server, form: str, path: str) -> None:
    for extra in ({}, {"lenient": False}):
        response = _post(server, path, {**FORMS[form], **extra})
        assert response.status_code == 422
        assert response.json()["error_type"] == "validation"
        assert response.json()["error"].removeprefix("Input validation error: ") in (
            REASON.format("uniqueItems", "tags", "uniqueItems"),
            REASON.format("not", "size", "not"),
        )


@pytest.mark.parametrize("form", ["json", "not strict"])
def test_lenient_serves_and_says_what_is_left_out(server: Server, form: str) -> None:
    grammar = {**FORMS[form], "lenient": True}
    whole = _post(server, "/generate", grammar)
    assert whole.status_code == 200
    assert whole.json()["warnings"] == WARNINGS
    assert set(json.loads(whole.json()["generated_text"])) == {"tags", "size"}
    (listed,) = _post(server, "/", grammar).json()
    assert listed["warnings"] == WARNINGS
    for path in ("/generate_stream", "/"):
        streamed = httpx.post(
            server.url + path,
            json={**body("As JSON: ", {"grammar": grammar, "max_new_tokens": 40})}
            | ({"stream": True} if path == "/" else {}),
            timeout=60,
        )
        lines = streamed.text.splitlines()
        events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
        assert events[-1]["generated_text"] is not None
        assert events[-1]["warnings"] == WARNINGS
        assert not any("warnings" in event for event in events[:-1])


def test_lenient_with_siblings(server: Server) -> None:
    grammar = {**FORMS["json"], "lenient": True}
    response = _post(server, "/generate", grammar, best_of=2, temperature=1.5, details=True).json()
    assert response["warnings"] == WARNINGS
    (sibling,) = response["details"]["best_of_sequences"]
    for text in (response["generated_text"], sibling["generated_text"]):
        assert set(json.loads(text)) == {"tags", "size"}
    assert "warnings" not in sibling


def test_strict_is_never_lenient(server: Server) -> None:
    value = {"name": "x", "schema": SCHEMA, "strict": True}
    grammar = {"type": "json_schema", "value": value}
    assert "uniqueItems" in _post(server, "/generate", grammar).json()["error"]
    response = _post(server, "/generate", {**grammar, "lenient": True})
    assert response.status_code == 422
    assert "`strict` and `lenient` exclude each other" in response.json()["error"]
    own_wish = {**SCHEMA, "x-guidance": {"lenient": True}}
    for form in ({"schema": own_wish, "strict": True}, {"schema": own_wish}):
        assert _post(server, "/generate", {**grammar, "value": form}).status_code == 422


def test_lenient_leaves_nothing_else_out(server: Server) -> None:
    response = _post(server, "/generate", {"type": "json", "value": "{", "lenient": True})
    assert response.status_code == 422
    wrong = {"properties": {"a": {"type": "strng"}}}
    response = _post(server, "/generate", {"type": "json", "value": wrong, "lenient": True})
    assert response.json()["error"].endswith("Invalid type: strng (at #/properties/a/type)")
    grammar = {"type": "json", "value": {"enum": [1, 2]}, "lenient": True}
    assert "warnings" not in _post(server, "/generate", grammar).json()


@pytest.mark.parametrize("kind", ["regex", "choice", "grammar"])
def test_only_json_can_be_lenient(server: Server, kind: str) -> None:
    value = ["a"] if kind == "choice" else "a"
    response = _post(server, "/generate", {"type": kind, "value": value, "lenient": True})
    assert response.status_code == 422
    assert "unknown field `lenient`" in response.text
