from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from msgspec import structs
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families

from tokenloom_engine.messages import EngineStats, Finish, ModelInfo
from tokenloom_router.config import RouterConfig
from tokenloom_router.errors import GenerationError, IncompleteGenerationError, OverloadedError
from tokenloom_router.exposition import render
from tokenloom_router.histogram import WeightedHistogram
from tokenloom_router.limits import Limits
from tokenloom_router.metrics import Metrics
from tokenloom_router.request import Timings

from .running import samples


@dataclass
class Engine:
    """An engine as the gauges read it."""

    model: ModelInfo | None
    stats: EngineStats = field(default_factory=EngineStats)
    is_ready: bool = True
    running_max_tokens: int = 0


@pytest.fixture
def finished() -> Timings:
    return Timings(
        received_at=10.0, validated_at=10.5, started_at=11.0, first_token_at=12.0, finished_at=15.0
    )


def test_all_are_there_from_the_start(metrics: Metrics) -> None:
    found = samples(metrics)
    assert set(found.values()) == {0.0}
    for name in (
        "tgi_request_count",
        "tgi_request_success",
        'tgi_request_failure{err="overloaded"}',
        'tgi_request_failure{err="dropped"}',
        'tgi_request_failure{err="template"}',
        "tgi_request_skipped_tokens_count",
        'tgi_batch_inference_failure{method="decode"}',
        'tgi_batch_decode_duration_count{method="prefill"}',
        'tgi_batch_filter_duration_bucket{method="decode",le="+Inf"}',
        'tgi_batch_concat_duration_sum{method="decode"}',
        'tgi_batch_concat{reason="wait_exceeded"}',
        'tgi_batch_concat{reason="backpressure"}',
        "tgi_request_duration_count",
        "tgi_request_validation_duration_sum",
        "tgi_request_queue_duration_sum",
        "tgi_request_inference_duration_sum",
        "tgi_request_mean_time_per_token_duration_sum",
        'tgi_request_input_length_bucket{le="+Inf"}',
        'tgi_request_generated_tokens_bucket{le="1024.0"}',
        "tgi_request_max_new_tokens_count",
        "tgi_request_time_to_first_token_duration_count",
        "tgi_request_inter_token_duration_count",
        "tgi_queue_size",
        "tgi_batch_current_size",
        "tgi_batch_current_max_tokens",
        "tgi_batch_max_total_tokens",
        "tgi_batch_next_size_count",
        'tgi_batch_inference_count{method="prefill"}',
        'tgi_batch_inference_success{method="decode"}',
        'tgi_batch_inference_duration_count{method="prefill"}',
        'tgi_batch_forward_duration_sum{method="decode"}',
        'tgi_batch_concat{reason="chunking"}',
        "tgi_kv_cache_used_tokens",
        "tgi_prefix_cache_hit_tokens",
        "tgi_batch_preemptions",
        "tgi_forced_tokens",
        "tgi_drafted_tokens",
        "tgi_accepted_tokens",
        "tgi_batch_mask_duration_count",
        "tgi_constraint_compile_duration_count",
        "tgi_engine_restarts",
        "tgi_engine_replicas",
        "tgi_engine_replicas_ready",
    ):
        assert name in found
    assert not [name for name in found if "_total{" in name or "_created" in name]
    assert [name for name in found if name.endswith("_total")] == []


def test_the_text_can_be_read(metrics: Metrics) -> None:
    text = metrics.render().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["tgi_request_count"].type == "counter"
    assert families["tgi_queue_size"].type == "gauge"
    assert families["tgi_request_inter_token_duration"].type == "histogram"
    assert metrics.content_type.startswith("text/plain; version=0.0.4")


def test_labels_are_escaped() -> None:
    registry = CollectorRegistry()
    value = 'a "quoted"\nback\\slash'
    Counter("things", "Of a kind.", ["kind"], registry=registry).labels(value).inc()
    (family,) = text_string_to_metric_families(render(registry).decode())
    assert [sample.labels["kind"] for sample in family.samples] == [value]


def test_a_finished_request(metrics: Metrics, finished: Timings) -> None:
    with metrics.requests.track(finished) as record:
        record.finishes = [Finish("length", "text", 4, 3), Finish("length", "te", 2, 0, 1)]
    found = samples(metrics)
    assert found["tgi_request_count"] == found["tgi_request_success"] == 1
    assert found["tgi_request_duration_sum"] == 5.0
    assert found["tgi_request_validation_duration_sum"] == 0.5
    assert found["tgi_request_queue_duration_sum"] == 0.5
    assert found["tgi_request_inference_duration_sum"] == 4.0
    assert found["tgi_request_mean_time_per_token_duration_sum"] == 1.0
    assert found["tgi_request_time_to_first_token_duration_sum"] == 2.0
    assert found["tgi_request_generated_tokens_sum"] == 6
    assert found["tgi_request_skipped_tokens_sum"] == 4


def test_each_request_is_counted_once(metrics: Metrics, finished: Timings) -> None:
    new = Timings(received_at=1.0)
    with pytest.raises(OverloadedError), metrics.requests.track(new):
        raise OverloadedError
    with metrics.requests.track(finished) as record:
        record.error = GenerationError("seen by the reader alone")
    with metrics.requests.track(finished) as record:
        record.error = IncompleteGenerationError()
    with pytest.raises(KeyError), metrics.requests.track(new):
        raise KeyError
    with metrics.requests.track(new):
        pass
    found = samples(metrics)
    assert found["tgi_request_count"] == 5
    assert found["tgi_request_success"] == found["tgi_request_duration_count"] == 0
    for err, number in (("overloaded", 1), ("generation", 1), ("incomplete", 1), ("dropped", 2)):
        assert found[f'tgi_request_failure{{err="{err}"}}'] == number


def test_lengths_have_tgis_buckets(metrics: Metrics, model: ModelInfo) -> None:
    metrics.requests.limited(Limits.resolve(RouterConfig(max_input_tokens=1000), model))
    found = samples(metrics)
    for name, largest in (("input_length", 1000), ("generated_tokens", 2048)):
        bounds = [
            float(line.split('"')[1])
            for line in found
            if line.startswith(f"tgi_request_{name}_bucket")
        ]
        assert bounds[:100] == [largest / 100 * number for number in range(1, 101)]
        assert bounds[100:] == [float("inf")]


def test_a_failed_step(metrics: Metrics) -> None:
    metrics.engine.step(EngineStats(batch_tokens=3, decode_sequences=3, failed=True))
    found = samples(metrics)
    assert found['tgi_batch_inference_count{method="decode"}'] == 1
    assert found['tgi_batch_inference_failure{method="decode"}'] == 1
    assert found['tgi_batch_inference_success{method="decode"}'] == 0
    assert found['tgi_batch_forward_duration_count{method="decode"}'] == 0


def test_the_share_of_the_kv_cache(metrics: Metrics, model: ModelInfo) -> None:
    small = structs.replace(model, max_batch_total_tokens=640, block_size=64)
    engine = Engine(small, EngineStats(running=1, used_tokens=160))
    metrics.engine.watch(engine)
    found = samples(metrics)
    assert found["tgi_kv_cache_usage"] == 0.25
    assert (found["tgi_kv_cache_block_size"], found["tgi_kv_cache_blocks"]) == (64, 10)
    engine.stats = EngineStats()
    assert samples(metrics)["tgi_kv_cache_usage"] == 0


def test_gauges_add_up_the_engines(metrics: Metrics, model: ModelInfo) -> None:
    small = structs.replace(model, max_batch_total_tokens=640, block_size=64)
    engines = [
        Engine(small, EngineStats(running=3, waiting=1, used_tokens=320), running_max_tokens=400),
        Engine(small, EngineStats(running=2, waiting=4, used_tokens=640), running_max_tokens=640),
        Engine(None, is_ready=False),
    ]
    for engine in engines:
        metrics.engine.watch(engine)
    found = samples(metrics)
    assert (found["tgi_batch_current_size"], found["tgi_queue_size"]) == (5, 5)
    assert found["tgi_batch_current_max_tokens"] == 1040
    assert found["tgi_batch_max_total_tokens"] == 1280
    assert (found["tgi_kv_cache_block_size"], found["tgi_kv_cache_blocks"]) == (64, 20)
    assert (found["tgi_kv_cache_used_tokens"], found["tgi_kv_cache_usage"]) == (960, 0.75)
    assert (found["tgi_engine_replicas"], found["tgi_engine_replicas_ready"]) == (3, 2)
    engines[0].is_ready, engines[0].stats = False, EngineStats()
    found = samples(metrics)
    assert found["tgi_engine_replicas_ready"] == 1
    assert found["tgi_kv_cache_usage"] == 1, "the cache of an engine that is not ready is not free"


def test_a_step(metrics: Metrics) -> None:
    metrics.engine.step(
        EngineStats(
            batch_tokens=40,
            prefill_sequences=1,
            decode_sequences=2,
            prefix_hit_tokens=32,
            preemptions=1,
            forced_tokens=5,
            drafted_tokens=9,
            accepted_tokens=6,
            merges=1,
            step_seconds=0.5,
            forward_seconds=0.25,
            mask_seconds=0.125,
            compile_seconds=[1.0, 2.0],
        )
    )
    metrics.engine.step(EngineStats(running=3, batch_tokens=3, decode_sequences=3))
    found = samples(metrics)
    assert found['tgi_batch_inference_count{method="prefill"}'] == 1
    assert found['tgi_batch_inference_success{method="decode"}'] == 1
    assert found['tgi_batch_inference_duration_sum{method="prefill"}'] == 0.5
    assert found['tgi_batch_forward_duration_sum{method="prefill"}'] == 0.25
    assert found['tgi_batch_decode_duration_sum{method="prefill"}'] == 0.25
    assert found["tgi_batch_next_size_sum"] == 1
    assert found['tgi_batch_concat{reason="chunking"}'] == 1
    assert found["tgi_prefix_cache_hit_tokens"] == 32
    assert found["tgi_batch_preemptions"] == 1
    assert found["tgi_forced_tokens"] == 5
    assert (found["tgi_drafted_tokens"], found["tgi_accepted_tokens"]) == (9, 6)
    assert found["tgi_batch_mask_duration_sum"] == 0.125
    assert found["tgi_constraint_compile_duration_count"] == 2


def test_a_step_without_a_forward_is_no_inference(metrics: Metrics) -> None:
    metrics.engine.step(EngineStats(waiting=1))
    found = samples(metrics)
    assert found['tgi_batch_inference_count{method="decode"}'] == 0


def test_a_weighted_histogram_counts_like_many_observations() -> None:
    registry = CollectorRegistry()
    histogram = WeightedHistogram("h", "Help.", [1.0, 2.0], registry)
    histogram.observe(1.0, 3)
    histogram.observe(1.5, 2)
    histogram.observe(9.0)
    lines = render(registry).decode().splitlines()
    assert lines[2:] == [
        'h_bucket{le="1.0"} 3.0',
        'h_bucket{le="2.0"} 5.0',
        'h_bucket{le="+Inf"} 6.0',
        "h_count 6.0",
        "h_sum 15.0",
    ]
