"""What the info route tells."""

from __future__ import annotations

from importlib.metadata import version

from typing_extensions import TypedDict

from tokenloom_router.router import Router
from tokenloom_server.settings import Settings


class InfoBody(TypedDict):
    """The model, and the limits that requests are held to."""

    model_id: str
    model_sha: str | None
    model_dtype: str
    model_device_type: str
    model_pipeline_tag: str
    max_concurrent_requests: int
    max_best_of: int
    max_stop_sequences: int
    max_input_tokens: int
    max_total_tokens: int
    waiting_served_ratio: float
    max_batch_total_tokens: int
    max_batch_prefill_tokens: int
    max_batch_size: int | None
    max_waiting_tokens: int
    replicas: int
    replicas_ready: int
    validation_workers: int
    max_client_batch_size: int
    logits_processors: list[str]
    router: str
    version: str
    sha: str | None
    docker_label: str | None


def info_body(router: Router, settings: Settings) -> InfoBody:
    """What holds now that the model is loaded."""
    model, limits = router.model, router.limits
    return {
        "model_id": model.model_id,
        "model_sha": model.sha,
        "model_dtype": model.dtype,
        "model_device_type": model.device,
        "model_pipeline_tag": "text-generation",
        "max_concurrent_requests": limits.max_concurrent_requests,
        "max_best_of": limits.max_best_of,
        "max_stop_sequences": limits.max_stop_sequences,
        "max_input_tokens": limits.max_input_tokens,
        "max_total_tokens": limits.max_total_tokens,
        "waiting_served_ratio": settings.waiting_served_ratio,
        "max_batch_total_tokens": model.max_batch_total_tokens,
        "max_batch_prefill_tokens": model.max_batch_prefill_tokens,
        "max_batch_size": model.max_batch_size,
        "max_waiting_tokens": settings.max_waiting_tokens,
        "replicas": router.num_replicas,
        "replicas_ready": router.num_ready,
        "validation_workers": settings.validation_workers,
        "max_client_batch_size": settings.max_client_batch_size,
        "logits_processors": model.logits_processors,
        "router": "text-generation-router",  # by this name TGI's clients know the dialect
        "version": version("tokenloom"),
        "sha": None,
        "docker_label": None,
    }
