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


@pytest.mark.parametrize(
    ("visible", "second"),
    [(None, "2,3"), ("4,5,6,7", "6,7"), ("GPU-a,GPU-b,GPU-c", "GPU-c"), ("0,1", ""), ("", "")],
)
def test_a_process_with_gpus_of_its_own(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, second: str
) -> None:
    """Too few are not made up: the process then sees fewer, and refuses to start."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert child_environment(gpus=range(2, 4))["CUDA_VISIBLE_DEVICES"] == second
    assert child_environment().get("CUDA_VISIBLE_DEVICES") == visible
