"""The streaming APIs that servers are measured by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from benchmarks.measurement import Measurement
from benchmarks.workload import Request


class Dialect(Protocol):
    """How a server is asked, and what its events mean."""

    path: ClassVar[str]
    """Of the route."""

    def body(self, request: Request) -> dict[str, Any]:
        """The JSON body of a request."""
        ...

    def take(self, event: dict[str, Any], elapsed: float, measurement: Measurement) -> None:
        """Note what an event says, `elapsed` seconds after the request was sent."""
        ...


class GenerateStream:
    """Our own route, TGI's: an event for each token."""

    path: ClassVar[str] = "/generate_stream"

    def body(self, request: Request) -> dict[str, Any]:
        """The JSON body of a request."""
        parameters: dict[str, Any] = {"max_new_tokens": request.max_tokens, "details": True}
        if request.schema is None:
            parameters["ignore_eos"] = True
        else:
            parameters["grammar"] = {"type": "json", "value": request.schema}
        if not request.forced_tokens:
            parameters["forced_tokens"] = False
        return {"inputs": request.prompt, "parameters": parameters}

    def take(self, event: dict[str, Any], elapsed: float, measurement: Measurement) -> None:
        """Note what an event says."""
        measurement.add_event(elapsed)
        if event["generated_text"] is not None:
            details = event["details"]
            measurement.end(event["generated_text"], cut=details["finish_reason"] == "length")
            # The last event is of no generated token where a grammar ended by itself.
            measurement.num_tokens = details["generated_tokens"]


@dataclass(frozen=True, slots=True)
class Completions:
    """OpenAI's route, with vLLM's field for a schema: an event for one token or more."""

    model: str
    path: ClassVar[str] = "/v1/completions"

    def body(self, request: Request) -> dict[str, Any]:
        """The JSON body of a request."""
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": request.prompt,
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if request.schema is None:
            return {**body, "ignore_eos": True}
        return {**body, "structured_outputs": {"json": request.schema}}

    def take(self, event: dict[str, Any], elapsed: float, measurement: Measurement) -> None:
        """Note what an event says."""
        for choice in event["choices"]:
            measurement.add_event(elapsed)
            measurement.text += choice["text"]
            if choice.get("finish_reason") is not None:
                measurement.end(measurement.text, cut=choice["finish_reason"] == "length")
        if event.get("usage") is not None:
            measurement.num_tokens = event["usage"]["completion_tokens"]


class LlamaCompletions(Completions):
    """llama.cpp's, with its field for a schema."""

    def body(self, request: Request) -> dict[str, Any]:
        """The JSON body of a request."""
        body = super().body(request)
        if request.schema is not None:
            body["json_schema"] = body.pop("structured_outputs")["json"]
        return body


class TransformersCompletions(Completions):
    """transformers': it counts no tokens, ends at EOS whatever one says, and knows no schema."""

    def body(self, request: Request) -> dict[str, Any]:
        """The JSON body of a request."""
        assert request.schema is None
        names = ("model", "prompt", "max_tokens", "temperature", "stream")
        body = super().body(request)
        return {name: body[name] for name in names}
