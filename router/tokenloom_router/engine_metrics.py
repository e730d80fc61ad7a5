"""Metrics of the engine's steps, under TGI's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tokenloom_engine.messages import EngineStats, ModelInfo
from tokenloom_router.histogram import COUNT_BUCKETS, SECONDS_BUCKETS, WeightedHistogram

_METHODS = ("prefill", "decode")
_CONCAT_REASONS = ("backpressure", "wait_exceeded", "chunking")
"""TGI's. Here sequences join a running batch without a wait, as its chunking does."""


class ObservedEngine(Protocol):
    """An engine, for the gauges."""

    model: ModelInfo | None
    """As the engine described it when it was ready last."""
    stats: EngineStats
    """Statistics of its last step, or all 0."""

    @property
    def is_ready(self) -> bool:
        """Return whether it takes requests."""
        ...

    @property
    def running_max_tokens(self) -> int:
        """Tokens that the running sequences may come to hold."""
        ...


class EngineMetrics:
    """Fed once a step from an engine's statistics. All engines together have one of each metric."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._engines: list[ObservedEngine] = []
        self._make_gauges()
        self._make_counters()
        self._make_histograms()

    def step(self, stats: EngineStats) -> None:
        """Take in the statistics of one step. A step that prefills at all is of that method."""
        if stats.batch_tokens:
            method = "prefill" if stats.prefill_sequences else "decode"
            self._inference_count[method].inc()
            if stats.failed:
                self._inference_failure[method].inc()
            else:
                self._inference_success[method].inc()
                self._inference_seconds[method].observe(stats.step_seconds)
                self._forward_seconds[method].observe(stats.forward_seconds)
                self._decode_seconds[method].observe(stats.step_seconds - stats.forward_seconds)
        if stats.prefill_sequences:
            self._next_size.observe(stats.prefill_sequences)
        if stats.merges:
            self._concat["chunking"].inc()
        self._rare(stats)

    def waited(self, seconds: float, count: int) -> None:
        """Note that `count` sequences got tokens `seconds` after their tokens before."""
        self._inter_token.observe(seconds, count)

    def restarted(self) -> None:
        """Count one start of the engine after the first."""
        self._restarts.inc()

    def watch(self, engine: ObservedEngine) -> None:
        """Count an engine in the gauges from now on."""
        self._engines.append(engine)

    def _rare(self, stats: EngineStats) -> None:
        """Take in what most steps do not have."""
        if stats.mask_seconds:
            self._mask_seconds.observe(stats.mask_seconds)
        for seconds in stats.compile_seconds:
            self._compile_seconds.observe(seconds)
        if stats.prefix_hit_tokens:
            self._prefix_hits.inc(stats.prefix_hit_tokens)
        if stats.preemptions:
            self._preemptions.inc(stats.preemptions)
        if stats.forced_tokens:
            self._forced_tokens.inc(stats.forced_tokens)
        if stats.drafted_tokens:
            self._drafted_tokens.inc(stats.drafted_tokens)
            self._accepted_tokens.inc(stats.accepted_tokens)

    def _make_gauges(self) -> None:
        """Sums over the engines, taken whenever the metrics are read."""

        def gauge(name: str, help_text: str, value: Callable[[], float]) -> None:
            Gauge(name, help_text, registry=self._registry).set_function(value)

        def total(name: str, help_text: str, value: Callable[[ObservedEngine], int]) -> None:
            gauge(name, help_text, lambda: sum(value(engine) for engine in self._engines))

        total("tgi_queue_size", "Sequences that wait.", lambda engine: engine.stats.waiting)
        total("tgi_batch_current_size", "Sequences that run.", lambda engine: engine.stats.running)
        total(
            "tgi_batch_current_max_tokens",
            "Tokens that the running sequences may come to hold.",
            lambda engine: engine.running_max_tokens,
        )
        total(
            "tgi_batch_max_total_tokens",
            "Tokens that the KV cache has room for.",
            lambda engine: _num_blocks(engine) * _block_size(engine),
        )
        total(
            "tgi_kv_cache_used_tokens",
            "Tokens of the KV cache that sequences hold.",
            lambda engine: engine.stats.used_tokens,
        )
        gauge("tgi_kv_cache_usage", "Share of the KV cache in use, 0 to 1.", self._usage)
        gauge(
            "tgi_kv_cache_block_size",
            "Tokens of a KV cache block.",
            lambda: max(map(_block_size, self._engines), default=0),
        )
        total("tgi_kv_cache_blocks", "Blocks of the KV cache.", _num_blocks)
        gauge("tgi_engine_replicas", "Engines.", lambda: len(self._engines))
        total(
            "tgi_engine_replicas_ready",
            "Engines that take requests.",
            lambda engine: engine.is_ready,
        )

    def _usage(self) -> float:
        """Return the share of the KV cache in use of the engines that are ready."""
        ready = [engine for engine in self._engines if engine.is_ready]
        size = sum(_num_blocks(engine) * _block_size(engine) for engine in ready)
        return sum(engine.stats.used_tokens for engine in ready) / max(1, size)

    def _make_counters(self) -> None:
        def counter(name: str, help_text: str) -> Counter:
            return Counter(name, help_text, registry=self._registry)

        def by_method(name: str, help_text: str) -> dict[str, Counter]:
            metric = Counter(name, help_text, ["method"], registry=self._registry)
            return {method: metric.labels(method) for method in _METHODS}

        self._inference_count = by_method("tgi_batch_inference_count", "Steps computed.")
        self._inference_success = by_method("tgi_batch_inference_success", "Steps that succeeded.")
        self._inference_failure = by_method("tgi_batch_inference_failure", "Steps that failed.")
        concat = Counter(
            "tgi_batch_concat",
            "Steps in which sequences joined a running batch.",
            ["reason"],
            registry=self._registry,
        )
        self._concat = {reason: concat.labels(reason) for reason in _CONCAT_REASONS}
        self._prefix_hits = counter(
            "tgi_prefix_cache_hit_tokens", "Prompt tokens that the prefix cache had."
        )
        self._preemptions = counter(
            "tgi_batch_preemptions", "Sequences set back to waiting for want of KV cache."
        )
        self._forced_tokens = counter(
            "tgi_forced_tokens", "Tokens that a constraint forced, computed without sampling."
        )
        self._drafted_tokens = counter("tgi_drafted_tokens", "Tokens guessed and verified.")
        self._accepted_tokens = counter(
            "tgi_accepted_tokens", "Guessed tokens that were right, and needed no forward."
        )
        self._restarts = counter("tgi_engine_restarts", "Starts of an engine after its first.")

    def _make_histograms(self) -> None:
        def seconds(name: str, help_text: str) -> Histogram:
            return Histogram(name, help_text, buckets=SECONDS_BUCKETS, registry=self._registry)

        def by_method(
            name: str, help_text: str, methods: tuple[str, ...] = _METHODS
        ) -> dict[str, Histogram]:
            metric = Histogram(
                name, help_text, ["method"], buckets=SECONDS_BUCKETS, registry=self._registry
            )
            return {method: metric.labels(method) for method in methods}

        self._inference_seconds = by_method("tgi_batch_inference_duration", "Seconds of a step.")
        self._forward_seconds = by_method("tgi_batch_forward_duration", "Seconds of a forward.")
        self._decode_seconds = by_method(
            "tgi_batch_decode_duration", "Seconds of a step beside its forward: sampling, text."
        )
        # A packed batch is made anew for each step, so these two have nothing to measure.
        by_method("tgi_batch_filter_duration", "Always empty: what ended is left out for free.")
        by_method(
            "tgi_batch_concat_duration", "Always empty: what is new joins for free.", ("decode",)
        )
        self._mask_seconds = seconds(
            "tgi_batch_mask_duration", "Seconds in which a step's bitmasks were filled."
        )
        self._compile_seconds = seconds(
            "tgi_constraint_compile_duration", "Seconds that a constraint took to compile."
        )
        self._next_size = WeightedHistogram(
            "tgi_batch_next_size",
            "Sequences that prefill in a step.",
            COUNT_BUCKETS,
            self._registry,
        )
        self._inter_token = WeightedHistogram(
            "tgi_request_inter_token_duration",
            "Seconds between two deliveries of tokens to one request.",
            SECONDS_BUCKETS,
            self._registry,
        )


def _num_blocks(engine: ObservedEngine) -> int:
    model = engine.model
    return 0 if model is None else model.max_batch_total_tokens // model.block_size


def _block_size(engine: ObservedEngine) -> int:
    return 0 if engine.model is None else engine.model.block_size
