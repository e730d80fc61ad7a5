"""Chats for locust, read as they come.

pip install locust; locust -f examples/locustfile.py --host http://127.0.0.1:3000
"""

import json
import time

from locust import HttpUser, between, task

PATH = "/v1/chat/completions"
BODY = {
    "messages": [{"role": "user", "content": "Tell me of the sea."}],
    "max_tokens": 32,
    "stream": True,
}


class Reader(HttpUser):
    """One client, which waits a little between its chats."""

    wait_time = between(0.5, 1.5)

    @task
    def chat(self) -> None:
        """A POST's time is that of its headers; two more are told: of the first token, and all."""
        start = time.perf_counter()
        with self.client.post(PATH, json=BODY, stream=True, catch_response=True) as response:
            if response.status_code != 200:
                return response.failure(response.text)
            is_first = True
            for line in response.iter_lines():
                if line == b"data: [DONE]":
                    return self._tell("whole answer", start)
                chunk = json.loads(line.removeprefix(b"data: ")) if line else {}
                if "error" in chunk:
                    return response.failure(chunk["error"]["message"])
                if is_first and any(c["delta"].get("content") for c in chunk.get("choices", ())):
                    is_first = False
                    self._tell("first token", start)
            return response.failure("the stream broke off")

    def _tell(self, name: str, start: float) -> None:
        milliseconds = (time.perf_counter() - start) * 1000
        self.environment.events.request.fire(
            request_type="SSE",
            name=name,
            response_time=milliseconds,
            response_length=0,
            exception=None,
            context={},
        )
