from __future__ import annotations

import gzip

import httpx
import pytest

JSON = {"content-type": "application/json"}
MALFORMED = "Failed to parse the request body as JSON: "
WRONG_SHAPE = "Failed to deserialize the JSON body into the target type: "
GENERATING = ["/generate", "/generate_stream", "/"]


def post(client: httpx.Client, body: bytes | str, path: str = "/generate") -> tuple[int, str]:
    response = client.post(path, content=body, headers=JSON)
    if response.status_code != 200 and not response.text.startswith('{"error":"Input validation'):
        assert response.headers["content-type"] == "text/plain; charset=utf-8"
    return response.status_code, response.text


def parameters(text: str) -> str:
    return '{"inputs": "a", "parameters": {' + text + "}}"


@pytest.mark.parametrize("path", [*GENERATING, "/tokenize"])
def test_another_content_type(client: httpx.Client, path: str) -> None:
    for headers in ({}, {"content-type": "text/plain"}, {"content-type": "application/xml"}):
        response = client.post(path, content=b'{"inputs": "a"}', headers=headers)
        assert response.status_code == 415
        assert response.text == "Expected request with `Content-Type: application/json`"


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "application/problem+json"])
def test_kinds_of_json(client: httpx.Client, kind: str) -> None:
    response = client.post("/tokenize", content=b'{"inputs": "a"}', headers={"content-type": kind})
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "it is empty"),
        (b"{:", "Expecting property name enclosed in double quotes at line 1 column 2"),
        (b'{"inputs":\n"a",}', "Illegal trailing comma before end of object at line 2 column 4"),
        (b'{"inputs": "a"} x', "Extra data at line 1 column 17"),
        (b"[" * 100_000, "nested too deeply"),
        ('{"inputs": "文件"}'.encode("gbk"), "not UTF-8 at byte 12"),
        ('{"inputs": "a"}'.encode("utf-16"), "not UTF-8 at byte 0"),
        ('{"inputs": "ä"}'.encode("latin-1"), "not UTF-8 at byte 12"),
        ('{"inputs": "a"}'.encode("utf-8-sig"), "Unexpected UTF-8 BOM"),
        (b'{"inputs": "a\nb"}', "Invalid control character"),
        (parameters('"seed": ' + "9" * 5000).encode(), "Exceeds the limit (4300 digits)"),
    ],
)
def test_what_is_no_json(client: httpx.Client, body: bytes, reason: str) -> None:
    status, text = post(client, body)
    assert status == 400
    assert text.startswith(MALFORMED)
    if "trailing comma" not in reason:  # its wording depends on Python's version
        assert reason in text


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "seed", "stop"])
def test_words_that_json_lacks(client: httpx.Client, field: str, word: str) -> None:
    assert post(client, parameters(f'"{field}": {word}')) == (400, f"{MALFORMED}{word} is not JSON")


@pytest.mark.parametrize("number", ["1e400", "-1e400"])
@pytest.mark.parametrize(
    "field",
    ["temperature", "repetition_penalty", "frequency_penalty", "top_p", "typical_p", "top_k"],
)
def test_numbers_beyond_all_bounds(client: httpx.Client, field: str, number: str) -> None:
    reason = f"{MALFORMED}the number {number} is out of range"
    assert post(client, parameters(f'"{field}": {number}')) == (400, reason)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("{}", "missing field `inputs`"),
        ("[]", "expected an object"),
        ("null", "expected an object"),
        ("3", "expected an object"),
        ('{"inputs": 1}', "inputs: Input should be a valid string"),
        ('{"inputs": null}', "inputs: Input should be a valid string"),
        ('{"inputs": "a", "inputs": "b"}', "duplicate field `inputs`"),
        ('{"inputs": "a", "parameters": null}', "parameters: Input should be a valid dictionary"),
        (parameters('"top_k": 1, "top_k": 2'), "duplicate field `top_k`"),
        (parameters('"top_k": "5"'), "parameters.top_k: Input should be a valid integer"),
        (parameters('"top_k": 5.5'), "parameters.top_k: Input should be a valid integer"),
        (parameters('"top_k": true'), "parameters.top_k: Input should be a valid integer"),
        (parameters('"temperature": true'), "parameters.temperature: Input should be a valid num"),
        (parameters('"max_new_tokens": -1'), "parameters.max_new_tokens: Input should be greater"),
        (parameters('"do_sample": null'), "parameters.do_sample: Input should be a valid boolean"),
        (parameters('"do_sample": "true"'), "parameters.do_sample: Input should be a valid bool"),
        (parameters('"stop": "b"'), "parameters.stop: Input should be a valid list"),
        (parameters('"stop": [1]'), "parameters.stop.0: Input should be a valid string"),
        (parameters('"grammar": {"type": "regex"}'), "parameters.grammar: missing field"),
        (parameters('"grammar": {"type": "ebnf"}'), "parameters.grammar: Input tag 'ebnf'"),
        (parameters('"grammar": {}'), "parameters.grammar: Unable to extract tag"),
        ('{"\\ud800": 1, "inputs": "a"}', "Input should be a valid string"),
    ],
)
def test_json_of_the_wrong_shape(client: httpx.Client, body: str, reason: str) -> None:
    status, text = post(client, body)
    assert status == 422
    assert text.startswith(WRONG_SHAPE + reason)


@pytest.mark.parametrize("path", GENERATING)
def test_every_route_reads_alike(client: httpx.Client, path: str) -> None:
    assert post(client, "{}", path) == (422, f"{WRONG_SHAPE}missing field `inputs`")
    assert post(client, "{", path)[0] == 400


NUMBERS = [
    "best_of",
    "temperature",
    "repetition_penalty",
    "frequency_penalty",
    "top_k",
    "top_p",
    "typical_p",
    "max_new_tokens",
    "truncate",
    "seed",
    "top_n_tokens",
]
VALUES = ['"x"', '"nan"', "true", "-1", "0", "1", "1.5", "1e308", "1e-320", str(2**70), "[]", "{}"]


def test_every_field_with_every_kind_of_value(client: httpx.Client) -> None:
    fields = client.get("/api-doc/openapi.json").json()["components"]["schemas"]
    for field in fields["GenerateParameters"]["properties"]:
        for value in (*VALUES, "null", '[["a"]]', '{"a": {"b": 1}}'):
            few = "" if field == "max_new_tokens" else ', "max_new_tokens": 1'
            if (field, value) == ("max_new_tokens", "null"):
                continue  # as many as there is room for
            status, text = post(client, parameters(f'"{field}": {value}{few}'))
            assert status in (200, 422), (field, value, text)
            assert status == 200 or text
    assert post(client, parameters('"max_new_tokens": 1'))[0] == 200


@pytest.mark.parametrize("field", NUMBERS)
@pytest.mark.parametrize("value", ['"x"', '"nan"', "true", str(2**70), "[]", "{}"])
def test_what_is_no_number_of_the_kind(client: httpx.Client, field: str, value: str) -> None:
    few = "" if field == "max_new_tokens" else ', "max_new_tokens": 1'
    status, text = post(client, parameters(f'"{field}": {value}{few}'))
    if value == str(2**70) and field in ("temperature", "repetition_penalty"):
        assert status == 200  # a number like others
    else:
        assert status == 422
        assert f"{field}" in text


@pytest.mark.parametrize("place", ['"const": {}', '"enum": [1, {}]', '"properties": {{"a": {}}}'])
def test_a_number_beyond_all_bounds_does_not_become_null(client: httpx.Client, place: str) -> None:
    schema = f"{{{place.format('-1e999')}}}"
    status, text = post(client, parameters(f'"grammar": {{"type": "json", "value": {schema}}}'))
    assert (status, text) == (400, f"{MALFORMED}the number -1e999 is out of range")


@pytest.mark.parametrize("key", [" 5", "05", "+5", "1_0", "\u0665", "5.0", "", "a", "-0", "9" * 99])
def test_an_id_is_spelt_in_one_way(client: httpx.Client, key: str) -> None:
    for path, body in (
        ("/generate", parameters(f'"max_new_tokens": 1, "logit_bias": {{"5": 1, "{key}": 2}}')),
        ("/v1/completions", f'{{"prompt": "a", "logit_bias": {{"5": 1, "{key}": 2}}}}'),
    ):
        response = client.post(path, content=body.encode(), headers=JSON)
        assert response.status_code in (400, 422)
        assert "`logit_bias` must have token ids as keys. Given: " in response.text


@pytest.mark.parametrize("path", [*GENERATING, "/tokenize", "/invocations", "/v1/completions"])
@pytest.mark.parametrize("coding", ["gzip", "br", "GZIP", "identity, gzip"])
def test_a_body_must_not_be_compressed(client: httpx.Client, path: str, coding: str) -> None:
    for body in (gzip.compress(b'{"inputs": "a"}'), b'{"inputs": "a"}'):
        response = client.post(path, content=body, headers={**JSON, "content-encoding": coding})
        assert response.status_code == 415
        assert f"`Content-Encoding: {coding}` is not supported" in response.text
    plain = {**JSON, "content-encoding": "identity"}
    assert client.post("/tokenize", content=b'{"inputs": "a"}', headers=plain).is_success


def test_a_long_name_is_not_said_in_full(client: httpx.Client) -> None:
    grammar = '"grammar": {"type": "regex", "value": "a", "' + "x" * 100_000 + '": 1}'
    status, text = post(client, parameters(grammar))
    assert (status, len(text)) == (422, 500)


def test_text_that_is_no_unicode(client: httpx.Client) -> None:
    half = '"\\ud800"'
    for path, body in [
        ("/tokenize", f'{{"inputs": {half}}}'),
        ("/generate", f'{{"inputs": {half}}}'),
        ("/generate_stream", parameters(f'"stop": [{half}]')),
        ("/generate", parameters(f'"grammar": {{"type": "regex", "value": {half}}}')),
        ("/generate", parameters(f'"grammar": {{"type": "json", "value": {{{half}: {half}}}}}')),
    ]:
        response = client.post(path, content=body, headers=JSON)
        assert response.status_code == 422
        assert response.json()["error_type"] == "validation"


def test_null_where_it_means_the_default(client: httpx.Client) -> None:
    fields = [
        "best_of",
        "temperature",
        "repetition_penalty",
        "frequency_penalty",
        "top_k",
        "top_p",
        "typical_p",
        "return_full_text",
        "truncate",
        "seed",
        "top_n_tokens",
        "grammar",
        "adapter_id",
    ]
    nulls = ", ".join(f'"{field}": null' for field in fields)
    assert post(client, parameters(f'{nulls}, "max_new_tokens": 1'))[0] == 200


def test_unknown_paths_and_verbs_have_no_body(client: httpx.Client) -> None:
    assert (client.get("/nothing").status_code, client.get("/nothing").content) == (404, b"")
    assert client.post("/generate/", json={"inputs": "a"}).status_code == 404
    response = client.get("/generate")
    assert (response.status_code, response.content) == (405, b"")
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/", "GET, HEAD, POST"),
        ("/generate", "POST"),
        ("/health", "GET, HEAD"),
        ("/v1/completions", "POST"),
        ("/v1/models/tgi", "GET, HEAD"),
        ("/docs/static/nothing", "GET, HEAD"),
    ],
)
def test_a_405_allows_the_methods_of_all_routes_at_its_path(
    client: httpx.Client, path: str, allowed: str
) -> None:
    response = client.delete(path)
    assert (response.status_code, response.headers["allow"]) == (405, allowed)
