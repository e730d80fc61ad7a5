"""Metrics of the engine's steps, under TGI's names."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tokenloom_engine.messages import EngineStats, ModelInfo
from tokenloom_router.histogram import COUNT_BUCKETS, SECONDS_BUCKETS, WeightedHistogram

_METHODS = ("prefill", "decode")
_CONCAT_REASONS = ("backpressure", "wait_exceeded", "chunking")
"""TGI's. Here sequences join a running batch without a wait, as its chunking does."""


class EngineMetrics:
    """Fed once a step from the engine's statistics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._cache_tokens = 0
        self._make_gauges()
        self._make_counters()
        self._make_histograms()

    def step(self, stats: EngineStats) -> None:
        """Take in the statistics of one step. A step that prefills at all is of that method."""
        self._queue_size.set(stats.waiting)
        self._batch_size.set(stats.running)
        self._used_tokens.set(stats.used_tokens)
        self._usage.set(stats.used_tokens / max(1, self._cache_tokens))
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

    def loaded(self, model: ModelInfo) -> None:
        """Note the size of the KV cache of an engine that became ready."""
        self._cache_tokens = model.max_batch_total_tokens
        self._max_total_tokens.set(model.max_batch_total_tokens)
        self._block_size.set(model.block_size)
        self._num_blocks.set(model.max_batch_total_tokens // model.block_size)

    def restarted(self) -> None:
        """Count one start of the engine after the first."""
        self._restarts.inc()

    def idle(self) -> None:
        """Nothing runs or waits any more. An idle engine, or none, sends no statistics."""
        for gauge in (self._queue_size, self._batch_size, self._used_tokens, self._usage):
            gauge.set(0)

    def watch_max_tokens(self, max_tokens: Callable[[], float]) -> None:
        """Ask `max_tokens` whenever the metrics are read."""
        self._batch_max_tokens.set_function(max_tokens)

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
        def gauge(name: str, help_text: str) -> Gauge:
            return Gauge(name, help_text, registry=self._registry)

        self._queue_size = gauge("tgi_queue_size", "Sequences that wait.")
        self._batch_size = gauge("tgi_batch_current_size", "Sequences that run.")
        self._batch_max_tokens = gauge(
            "tgi_batch_current_max_tokens", "Tokens that the running sequences may come to hold."
        )
        self._max_total_tokens = gauge(
            "tgi_batch_max_total_tokens", "Tokens that the KV cache has room for."
        )
        self._used_tokens = gauge(
            "tgi_kv_cache_used_tokens", "Tokens of the KV cache that sequences hold."
        )
        self._usage = gauge("tgi_kv_cache_usage", "Share of the KV cache in use, 0 to 1.")
        self._block_size = gauge("tgi_kv_cache_block_size", "Tokens of a KV cache block.")
        self._num_blocks = gauge("tgi_kv_cache_blocks", "Blocks of the KV cache.")

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
        self._restarts = counter("tgi_engine_restarts", "Starts of the engine after the first.")

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
