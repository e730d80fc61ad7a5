"""The headers that say what a generation cost, as TGI has them."""

from __future__ import annotations

from collections.abc import Sequence

from tokenloom_router.request import GenerateResponse, Generation, Timings, ValidRequest
from tokenloom_router.router import Router
from tokenloom_server.settings import Settings


def compute_type(router: Router, settings: Settings) -> str:
    """What x-compute-type says."""
    return settings.compute_type or f"{router.model.num_shards}-{router.model.device}"


def stream_headers(request: ValidRequest, timings: Timings, compute_type: str) -> dict[str, str]:
    """What is known of a generation once it has begun."""
    return {
        "x-compute-type": compute_type,
        "x-compute-characters": str(len(request.inputs)),
        "x-validation-time": _milliseconds(timings.validation_seconds),
        "x-queue-time": _milliseconds(timings.queue_seconds),
        "x-prompt-tokens": str(request.input_length),
    }


def response_headers(response: GenerateResponse, compute_type: str) -> dict[str, str]:
    """What one finished generation cost; the best one's if there were several."""
    best = response.generations[:1]
    return summed_headers([response.request], [response.timings], best, compute_type)


def summed_headers(
    requests: Sequence[ValidRequest],
    timings: Sequence[Timings],
    generations: Sequence[Generation],
    compute_type: str,
) -> dict[str, str]:
    """What several cost together. The times are in milliseconds but for x-compute-time."""
    total_seconds = sum(timing.total_seconds for timing in timings)
    inference_seconds = sum(timing.inference_seconds for timing in timings)
    generated_tokens = sum(generation.finish.generated_tokens for generation in generations)
    return {
        "x-compute-type": compute_type,
        "x-compute-characters": str(sum(len(request.inputs) for request in requests)),
        "x-compute-time": f"{total_seconds:.6f}",
        "x-total-time": _milliseconds(total_seconds),
        "x-validation-time": _milliseconds(sum(t.validation_seconds for t in timings)),
        "x-queue-time": _milliseconds(sum(t.queue_seconds for t in timings)),
        "x-inference-time": _milliseconds(inference_seconds),
        "x-time-per-token": _milliseconds(inference_seconds / max(1, generated_tokens)),
        "x-prompt-tokens": str(sum(request.input_length for request in requests)),
        "x-generated-tokens": str(generated_tokens),
    }


def _milliseconds(seconds: float) -> str:
    return str(int(seconds * 1000))
