from __future__ import annotations

import pytest

from tokenloom_engine.child_environment import child_environment

SECRET = {
    "API_KEY": "a",
    "OPENAI_API_KEY": "a",
    "AWS_SECRET_ACCESS_KEY": "a",
    "AWS_SESSION_TOKEN": "a",
    "NGROK_AUTHTOKEN": "a",
    "DB_PASSWORD": "a",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "authorization=a",
    "REDIS_URL": "redis://:a@host/0",
}
FOR_DOWNLOADS = {"HF_TOKEN": "a", "https_proxy": "http://user:a@proxy:80"}
PLAIN = {
    "MAX_TOTAL_TOKENS": "9",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_TOKEN_PATH": "/run/token",
    "HTTP_PROXY": "http://proxy:80",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317",
    "KEYBOARD": "a",
}


def test_secrets_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (SECRET | FOR_DOWNLOADS | PLAIN).items():
        monkeypatch.setenv(name, value)
    environment = child_environment()
    assert not environment.keys() & (SECRET | FOR_DOWNLOADS).keys()
    assert environment.items() >= PLAIN.items()
    environment = child_environment(downloads=True)
    assert not environment.keys() & SECRET.keys()
    assert environment.items() >= (FOR_DOWNLOADS | PLAIN).items()
