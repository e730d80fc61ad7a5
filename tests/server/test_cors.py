from __future__ import annotations

from pathlib import Path

import httpx

from tests.server.running import running

PREFLIGHT = {
    "origin": "http://page.example",
    "access-control-request-method": "POST",
    "access-control-request-headers": "content-type",
}


def test_any_origin_by_default(client: httpx.Client) -> None:
    response = client.options("/generate", headers=PREFLIGHT)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == "*"
    assert response.headers["access-control-allow-methods"] == "GET, POST"
    assert "content-type" in response.headers["access-control-allow-headers"].lower()
    response = client.get("/info", headers={"origin": "http://page.example"})
    assert response.headers["access-control-allow-origin"] == "*"


def test_only_the_origins_that_are_named(tokenizer_file: Path) -> None:
    origins = ["http://page.example", "http://other.example"]
    with (
        running(tokenizer_file, cors_allow_origin=origins, api_key="k") as server,
        httpx.Client(base_url=server.url) as client,
    ):
        for origin in origins:
            response = client.options("/generate", headers={**PREFLIGHT, "origin": origin})
            assert response.headers["access-control-allow-origin"] == origin
        response = client.options("/generate", headers={**PREFLIGHT, "origin": "http://third"})
        assert response.status_code == 400
        assert "access-control-allow-origin" not in response.headers
