"""Requests in OpenAI's dialect, without a client library."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.integration.serving import Json, Server

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
DONE = "[DONE]"


@dataclass
class Streamed:
    """What a stream brought."""

    chunks: list[Json] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    @property
    def choices(self) -> list[Json]:
        """What each chunk adds to a choice."""
        return [choice for chunk in self.chunks for choice in chunk["choices"]]

    def text(self, index: int = 0) -> str:
        """The joined text or content of a choice."""
        own = [choice for choice in self.choices if choice["index"] == index]
        return "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in own)

    def finish_reasons(self, index: int = 0) -> list[str]:
        """All that a choice has, which should be one."""
        own = [choice for choice in self.choices if choice["index"] == index]
        return [c["finish_reason"] for c in own if c["finish_reason"] is not None]


def ask(server: Server, path: str, **body: Any) -> Json:  # noqa: ANN401 - JSON
    """POST; returns the answer, asserting 200."""
    response = httpx.post(server.url + path, json=body, timeout=120)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


def chat(server: Server, content: str = "Say hello.", **body: Any) -> Json:  # noqa: ANN401
    """Ask one question, greedily unless told otherwise."""
    messages = [{"role": "user", "content": content}]
    return ask(server, CHAT, **{"messages": messages, "max_tokens": 16, "temperature": 0, **body})


def complete(server: Server, prompt: Any = "Salt and", **body: Any) -> Json:  # noqa: ANN401
    """Complete a prompt, greedily unless told otherwise."""
    return ask(server, COMPLETIONS, **{"prompt": prompt, "temperature": 0, **body})


def stream(server: Server, path: str, **body: Any) -> Streamed:  # noqa: ANN401
    """POST with `stream`; returns the events, asserting that the last one is [DONE]."""
    streamed = Streamed()
    with httpx.stream(
        "POST", server.url + path, json={**body, "stream": True}, timeout=120
    ) as response:
        assert response.status_code == 200, response.read().decode()
        assert response.headers["content-type"] == "text/event-stream"
        for line in response.iter_lines():
            streamed.lines.append(line)
            if line.startswith("data: ") and line != f"data: {DONE}":
                streamed.chunks.append(json.loads(line.removeprefix("data: ")))
    assert [line for line in streamed.lines if line][-1] == f"data: {DONE}"
    return streamed


def stream_chat(server: Server, content: str = "Say hello.", **body: Any) -> Streamed:  # noqa: ANN401
    """The same question as `chat`'s, streamed."""
    messages = [{"role": "user", "content": content}]
    given = {"messages": messages, "max_tokens": 16, "temperature": 0, **body}
    return stream(server, CHAT, **given)


def stream_completion(server: Server, prompt: Any = "Salt and", **body: Any) -> Streamed:  # noqa: ANN401
    """The same prompt as `complete`'s, streamed."""
    return stream(server, COMPLETIONS, **{"prompt": prompt, "temperature": 0, **body})


def fault(server: Server, path: str, body: Json | bytes, status: int = 400) -> Json:
    """POST what is wrong; returns the error, asserting its form and status."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode(errors="surrogatepass")
    response = httpx.post(
        server.url + path,
        content=content,
        headers={"content-type": "application/json"},
        timeout=60,
    )
    assert response.status_code == status, response.text
    answer: Json = response.json()
    assert set(answer) == {"error"}
    error: Json = answer["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error
