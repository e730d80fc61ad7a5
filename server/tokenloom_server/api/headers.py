"""The headers that say what a generation cost, as TGI has them."""

from __future__ import annotations

from tokenloom_router.request import GenerateResponse


def stream_headers(inputs: str, compute_type: str) -> dict[str, str]:
    """What is known before a generation starts."""
    return {"x-compute-type": compute_type, "x-compute-characters": str(len(inputs))}


def response_headers(response: GenerateResponse, compute_type: str) -> dict[str, str]:
    """All of them. The times are in milliseconds but for x-compute-time."""
    timings = response.timings
    generated_tokens = response.generations[0].finish.generated_tokens
    per_token_seconds = timings.inference_seconds / max(1, generated_tokens)
    return {
        **stream_headers(response.request.inputs, compute_type),
        "x-compute-time": f"{timings.total_seconds:.6f}",
        "x-total-time": _milliseconds(timings.total_seconds),
        "x-validation-time": _milliseconds(timings.validation_seconds),
        "x-queue-time": _milliseconds(timings.queue_seconds),
        "x-inference-time": _milliseconds(timings.inference_seconds),
        "x-time-per-token": _milliseconds(per_token_seconds),
        "x-prompt-tokens": str(response.request.input_length),
        "x-generated-tokens": str(generated_tokens),
    }


def _milliseconds(seconds: float) -> str:
    return str(int(seconds * 1000))
