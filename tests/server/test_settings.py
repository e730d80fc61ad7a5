from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tokenloom_engine.constraints.config import ConstraintConfig
from tokenloom_server.configs import engine_config, router_config
from tokenloom_server.environment import (
    OTHER_NAMES,
    PLATFORM_PORTS,
    ignored_hostname,
    ignored_variables,
)
from tokenloom_server.settings import Settings
from tokenloom_server.settings_error import one_line
from tokenloom_server.tgi_flags import NO_EFFECT, remarks

TGI_DEFAULTS = {
    "revision": None,
    "validation_workers": 2,
    "trust_remote_code": False,
    "max_concurrent_requests": 128,
    "max_best_of": 2,
    "max_stop_sequences": 4,
    "max_top_n_tokens": 5,
    "max_input_tokens": None,
    "max_total_tokens": None,
    "max_batch_prefill_tokens": None,
    "max_batch_total_tokens": None,
    "max_waiting_tokens": 20,
    "max_batch_size": None,
    "hostname": "0.0.0.0",
    "port": 3000,
    "json_output": False,
    "cors_allow_origin": (),
    "api_key": None,
    "disable_grammar_support": False,
    "payload_limit": 2_000_000,
    "graceful_termination_timeout": 90,
    "max_client_batch_size": 4,
    "quantize": None,
    "sharded": None,
    "num_shard": None,
    "cuda_memory_fraction": 1.0,
    "otlp_endpoint": None,
    "otlp_service_name": "text-generation-inference.router",
    "watermark_gamma": 0.5,
    "watermark_delta": 2.0,
    "ngrok": False,
    "lora_adapters": (),
}
OTHER_VARIABLES = (
    "PREFIX_CACHING",
    "PREFILL_CHUNKING",
    "USE_FLASH_ATTENTION",
    "AIP_STORAGE_URI",
    *PLATFORM_PORTS,
    *OTHER_NAMES.values(),
)


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [name.upper() for name in Settings.model_fields]
    for name in (*names, *OTHER_VARIABLES):
        monkeypatch.delenv(name, raising=False)


def flags(**given: object) -> dict[str, Any]:
    """As they come from the command line: text."""
    return given


def test_the_defaults_are_tgis() -> None:
    settings = Settings()
    assert {name: getattr(settings, name) for name in TGI_DEFAULTS} == TGI_DEFAULTS


def test_a_variable_sets_each_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_BATCH_TOTAL_TOKENS", "4096")
    monkeypatch.setenv("MODEL_ID", "some/model")
    monkeypatch.setenv("WAITING_SERVED_RATIO", "0.3")
    monkeypatch.setenv("DTYPE", "float32")
    settings = Settings()
    assert settings.max_batch_total_tokens == 4096
    assert settings.model_id == "some/model"
    assert settings.waiting_served_ratio == 0.3
    assert settings.dtype == "float32"


def test_a_flag_wins_over_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "4000")
    assert Settings().port == 4000
    assert Settings(**flags(port="5000")).port == 5000


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "")
    monkeypatch.setenv("TRUST_REMOTE_CODE", "")
    settings = Settings()
    assert (settings.port, settings.trust_remote_code) == (3000, False)


@pytest.mark.parametrize("name", ["api_key", "api_key_file"])
def test_an_empty_key_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with pytest.raises(ValidationError, match=name):
        Settings(**flags(**{name: ""}))
    monkeypatch.setenv(name.upper(), "")
    with pytest.raises(ValidationError, match=name):
        Settings()
    assert Settings(**flags(api_key="k", api_key_file=None)).api_key == "k", "the flag wins"


@pytest.mark.parametrize("key", ["", " ", "\n", " k", "k ", "k\n\tl", "a\nb"])
def test_a_key_that_no_header_can_hold_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Settings(**flags(api_key=key))
    assert one_line(raised.value).startswith("`api_key` ")
    file = tmp_path / "key"
    file.write_text(key + "\n")
    with pytest.raises(ValidationError) as raised:
        Settings(**flags(api_key_file=str(file)))
    assert str(file) in one_line(raised.value)


def test_a_key_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "key"
    file.write_text("Sésame-42\r\n", newline="")
    assert Settings(**flags(api_key_file=str(file))).api_key == "Sésame-42"
    monkeypatch.setenv("API_KEY_FILE", str(file))
    assert Settings().api_key == "Sésame-42"
    with pytest.raises(ValidationError, match="give one of them"):
        Settings(**flags(api_key="other"))
    monkeypatch.setenv("API_KEY_FILE", str(tmp_path / "none"))
    with pytest.raises(ValidationError, match="cannot be read: No such file or directory"):
        Settings()
    file.write_bytes(b"\xff")
    with pytest.raises(ValidationError, match="it is not UTF-8"):
        Settings(**flags(api_key_file=str(file)))


@pytest.mark.parametrize("value", ["n", "no", "f", "false", "off", "0", "False", "OFF"])
def test_words_for_off(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("JSON_OUTPUT", value)
    assert not Settings().json_output


@pytest.mark.parametrize("value", ["1", "true", "yes", "on", "whatever"])
def test_any_other_word_is_on(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("JSON_OUTPUT", value)
    assert Settings().json_output


def test_origins_are_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORS_ALLOW_ORIGIN", "http://a, http://b")
    assert Settings().cors_allow_origin == ("http://a", "http://b")
    given = flags(cors_allow_origin=["http://c", "http://d,http://e"])
    assert Settings(**given).cors_allow_origin == ("http://c", "http://d", "http://e")


def test_a_hostname_that_is_a_name_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTNAME", "3f2a91c0d1e2")
    assert Settings().hostname == "0.0.0.0"
    assert ignored_hostname() == "3f2a91c0d1e2"
    monkeypatch.setenv("HOSTNAME", "127.0.0.1")
    assert Settings().hostname == "127.0.0.1"
    assert ignored_hostname() is None
    assert Settings(hostname="::1").hostname == "::1"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"validation_workers": "0"}, "`validation_workers` must be > 0"),
        ({"max_batch_size": "0"}, "`max_batch_size` must be > 0"),
        (
            {"max_input_tokens": "8", "max_total_tokens": "8"},
            "`max_input_tokens` must be < `max_total_tokens`",
        ),
        (
            {"max_batch_prefill_tokens": "9", "max_batch_total_tokens": "8"},
            "`max_batch_prefill_tokens` must be <= `max_batch_total_tokens`. Given: 9 and 8",
        ),
        (
            {"max_total_tokens": "9", "max_batch_total_tokens": "8"},
            "`max_total_tokens` must be <= `max_batch_total_tokens`. Given: 9 and 8",
        ),
        ({"port": "70000"}, "`port` must be <= 65535 (--port, PORT)"),
        ({"port": "http"}, "`port` must be an integer, not 'http' (--port, PORT)"),
        ({"max_concurrent_requests": "1.5"}, "`max_concurrent_requests` must be an integer"),
        ({"waiting_served_ratio": "nan"}, "`waiting_served_ratio` must be finite, not 'nan'"),
        ({"waiting_served_ratio": "much"}, "`waiting_served_ratio` must be a number, not 'much'"),
        ({"dtype": "int3"}, "`dtype` must be 'auto', 'bfloat16', 'float16' or 'float32'"),
        ({"hostname": "a.b"}, "`hostname` must be an IP address, not 'a.b' (--hostname, HOSTNAME)"),
        (
            {"max_input_length": "7", "max_input_tokens": "7"},
            "both `max_input_tokens` (7) and its older name `max_input_length` (7) are set",
        ),
        ({"quantize": "awq"}, "`quantize` must be 'int8', not 'awq': no other method is built"),
        ({"kv_cache_dtype": "int4"}, "`kv_cache_dtype` must be 'auto', 'fp8_e4m3fn' or"),
        ({"sharded": "true", "num_shard": "1"}, "`sharded` is true and `num_shard` 1"),
        ({"replicas": "0"}, "`replicas` must be > 0 (--replicas, REPLICAS)"),
        ({"sharded": "true", "replicas": "2"}, "`sharded` gives all GPUs to one engine"),
        ({"num_shard": "0"}, "`num_shard` must be > 0 (--num-shard, NUM_SHARD)"),
        ({"speculate": "65"}, "`speculate` must be <= 64"),
        ({"ngrok": "true"}, "`ngrok` is not built"),
        ({"lora_adapters": "a,b=/c"}, "`lora_adapters` is not built"),
        ({"rope_scaling": "linear"}, "`rope_scaling` needs `rope_factor`"),
        ({"rope_factor": "0.5"}, "`rope_factor` must be >= 1"),
        ({"tokenizer_config_path": "/nowhere"}, "`tokenizer_config_path` must be a file"),
        ({"otlp_endpoint": "collector:4317"}, "`otlp_endpoint` must be like http://host:4317"),
        ({"usage_stats": "some"}, "`usage_stats` must be 'on', 'off' or 'no-stack'"),
        ({"cuda_memory_fraction": "1.5"}, "`cuda_memory_fraction` must be <= 1"),
        ({"watermark_gamma": "0"}, "`watermark_gamma` must be > 0"),
        ({"engine_stall_timeout": "1"}, "`engine_stall_timeout` must be >= 2"),
        ({"log_level": "loud"}, "`log_level` must be 'trace', 'debug', 'info', 'warn' or 'error'"),
        ({"port": "a\nb"}, "`port` must be an integer, not 'a\\nb' (--port, PORT)"),
    ],
)
def test_what_is_wrong_fits_in_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Settings(**given)
    line = one_line(raised.value)
    assert line.startswith(message)
    assert "\n" not in line


def test_all_wrong_settings_are_named() -> None:
    with pytest.raises(ValidationError) as raised:
        Settings(**flags(port="-1", max_best_of="x"))
    line = one_line(raised.value)
    assert "`port` must be >= 0" in line
    assert "`max_best_of` must be an integer" in line


def test_every_setting_reaches_the_engine_or_the_router() -> None:
    given: dict[str, Any] = {
        "model_id": "m",
        "revision": "r",
        "dtype": "float16",
        "trust_remote_code": "1",
        "max_concurrent_requests": "3",
        "max_best_of": "4",
        "max_stop_sequences": "5",
        "max_top_n_tokens": "6",
        "max_input_tokens": "7",
        "max_total_tokens": "8",
        "validation_workers": "9",
        "max_batch_prefill_tokens": "10",
        "max_batch_total_tokens": "11",
        "max_batch_size": "12",
        "max_waiting_tokens": "13",
        "waiting_served_ratio": "1.4",
        "disable_prefix_caching": "1",
        "block_size": "15",
        "speculate": "2",
        "device": "cpu",
        "attention": "sdpa",
        "cuda_graphs": "1,2,4",
        "num_threads": "16",
        "engine_nice": "-4",
        "disable_grammar_support": "1",
        "disable_forced_tokens": "1",
        "json_output": "1",
        "log_level": "WARNING",
        "quantize": "int8",
        "cuda_memory_fraction": "0.5",
        "engine_stall_timeout": "17",
        "tokenizer_config_path": __file__,
    }
    settings = Settings(**given)
    engine, router = engine_config(settings), router_config(settings)
    assert (engine.model_id, engine.revision, engine.dtype) == ("m", "r", "float16")
    assert engine.trust_remote_code
    assert (engine.device, engine.attention, engine.num_threads) == ("cpu", "sdpa", 16)
    assert engine.nice == -4
    assert (engine.max_batch_prefill_tokens, engine.max_batch_total_tokens) == (10, 11)
    assert (engine.max_batch_size, engine.max_waiting_tokens) == (12, 13)
    assert (engine.waiting_served_ratio, engine.block_size) == (1.4, 15)
    assert (engine.max_total_tokens, engine.prefix_caching) == (8, False)
    assert engine.speculate == 2
    assert engine.cuda_graphs == (1, 2, 4)
    assert engine_config(Settings(model_id="m", **flags(cuda_graphs="0"))).cuda_graphs == (0,)
    assert engine_config(Settings(model_id="m")).cuda_graphs is None
    assert (engine.json_output, engine.log_level) == (True, "warn")
    assert (engine.quantize, engine.cuda_memory_fraction) == ("int8", 0.5)
    assert router.engine_stall_timeout == 17
    assert router.tokenizer_config_path == __file__
    assert (router.max_concurrent_requests, router.max_best_of) == (3, 4)
    assert (router.max_stop_sequences, router.max_top_n_tokens) == (5, 6)
    assert (router.max_input_tokens, router.max_total_tokens) == (7, 8)
    assert router.validation_workers == 9
    assert router.disable_grammar_support
    assert router.disable_forced_tokens


def test_sagemakers_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_MODEL_ID", "hub/model")
    monkeypatch.setenv("HF_MODEL_REVISION", "v1")
    monkeypatch.setenv("SM_NUM_GPUS", "1")
    monkeypatch.setenv("HF_MODEL_QUANTIZE", "int8")
    monkeypatch.setenv("HF_MODEL_TRUST_REMOTE_CODE", "true")
    settings = Settings()
    assert (settings.model_id, settings.revision, settings.num_shard) == ("hub/model", "v1", 1)
    assert (settings.quantize, settings.trust_remote_code) == ("int8", True)
    monkeypatch.setenv("MODEL_ID", "other/model")
    assert Settings().model_id == "other/model"
    monkeypatch.setenv("SM_NUM_GPUS", "4")
    assert engine_config(Settings()).num_shard == 4


def test_sagemaker_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SM_NUM_GPUS", "0")
    assert engine_config(Settings(model_id="m")).num_shard == 1
    monkeypatch.setenv("SM_NUM_GPUS", "-1")
    with pytest.raises(ValidationError, match="num_shard"):
        Settings()


@pytest.mark.parametrize("name", PLATFORM_PORTS)
def test_the_port_that_a_platform_assigns(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("PORT", "80")
    monkeypatch.setenv(name, "")
    assert Settings().port == 80
    monkeypatch.setenv(name, "8123")
    assert Settings().port == 8123, "an image sets PORT"
    assert Settings(**flags(port="90")).port == 90
    monkeypatch.setenv(name, "http")
    with pytest.raises(ValidationError, match="port"):
        Settings()


def test_vertexs_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (Settings().predict_route, Settings().health_route) == (None, None)
    route = "/v1/endpoints/1/deployedModels/2"
    monkeypatch.setenv("AIP_HEALTH_ROUTE", route)
    monkeypatch.setenv("AIP_PREDICT_ROUTE", f"{route}:predict")
    assert (Settings().predict_route, Settings().health_route) == (f"{route}:predict", route)
    assert Settings(**flags(health_route="/ok")).health_route == "/ok"


@pytest.mark.parametrize("route", ["predict", "/a?b", "/a#b", "/{a}", "/a b", "/é", "//a", ""])
def test_a_route_must_be_a_path(route: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Settings(**flags(predict_route=route))
    assert "must be a path" in one_line(raised.value)
    assert "--predict-route" in one_line(raised.value)


def test_a_model_in_cloud_storage_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIP_STORAGE_URI", "gs://bucket/model")
    with pytest.raises(ValidationError, match="AIP_STORAGE_URI=gs://bucket/model .* MODEL_ID"):
        Settings()
    assert Settings(model_id="m").model_id == "m"
    (line,) = ignored_variables()
    assert line.startswith("AIP_STORAGE_URI=gs://bucket/model has no effect")


def test_how_many_shards() -> None:
    def num_shard(**given: str) -> int | None:
        return engine_config(Settings(model_id="m", **flags(**given))).num_shard

    assert num_shard() == num_shard(sharded="false") == 1
    assert num_shard(sharded="true") is None, "as many as there are GPUs"
    assert num_shard(sharded="true", num_shard="4") == num_shard(num_shard="4") == 4
    assert num_shard(sharded="false", num_shard="4") == 4, "as in TGI"


def test_tgis_other_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENV", "production")
    assert not Settings().env
    monkeypatch.setenv("ATTENTION", "paged")
    monkeypatch.setenv("PREFILL_CHUNKING", "0")
    monkeypatch.setenv("USE_FLASH_ATTENTION", "true")
    assert Settings().attention == "auto"
    attention, chunking = ignored_variables()
    assert attention.startswith("ATTENTION=paged has no effect")
    assert chunking.startswith("PREFILL_CHUNKING=0 has no effect")
    monkeypatch.setenv("PREFIX_CACHING", "0")
    assert Settings().disable_prefix_caching
    monkeypatch.setenv("PREFIX_CACHING", "true")
    assert not Settings().disable_prefix_caching


def test_the_older_name_of_max_input_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_INPUT_LENGTH", "7")
    settings = Settings()
    assert settings.max_input_tokens == 7
    assert [*remarks(settings.given)] == [
        "--max-input-length is an older name of --max-input-tokens"
    ]


def test_flags_without_effect_say_so_if_they_are_given() -> None:
    given = flags(
        enable_prefill_logprobs="true",
        kv_cache_dtype="fp8_e5m2",
        master_addr="localhost",
        master_port="29500",
        ngrok_authtoken="token",
        ngrok_edge="edge",
        prometheus_port="9000",
        shard_uds_path="/tmp/shard",
        weights_cache_override="/weights",
        usage_stats="on",
        num_shard="1",
        sharded="false",
        max_batch_size="4",
    )
    lines = [*remarks(Settings(**given).given)]
    assert len(lines) == len(NO_EFFECT)
    for name in NO_EFFECT:
        assert sum(line.startswith(f"--{name.replace('_', '-')} has no effect: ") for line in lines)
    assert [*remarks(Settings().given)] == []
    quiet = flags(kv_cache_dtype="auto")
    assert [*remarks(Settings(**quiet).given)] == []


def test_the_flags_of_constraints_reach_both_parts() -> None:
    given = flags(
        constraint_backend="llguidance,regex=xgrammar",
        max_grammar_bytes="1",
        max_grammar_depth="2",
        grammar_timeout="0.5",
        max_grammar_items="4",
        max_grammar_items_in_row="5",
    )
    settings = Settings(**given)
    config = engine_config(settings).constraints
    assert config == router_config(settings).constraints
    assert (config.backend_of("regex"), config.backend_of("choice")) == ("xgrammar", "llguidance")
    assert (config.max_bytes, config.max_depth, config.timeout_seconds) == (1, 2, 0.5)
    assert (config.max_items, config.max_items_in_row) == (4, 5)
    assert engine_config(Settings(model_id="m")).constraints == ConstraintConfig()


def test_a_constraint_back_end_serves_all_kinds_or_one() -> None:
    assert set(Settings(**flags(constraint_backend="xgrammar")).backends.values()) == {"xgrammar"}
    given = "choice=xgrammar,regex=xgrammar,llguidance,regex=llguidance"
    backends = Settings(**flags(constraint_backend=given)).backends
    assert {kind for kind, name in backends.items() if name == "xgrammar"} == {"choice"}


@pytest.mark.parametrize("value", ["outlines", "regex=outlines", "regexp=xgrammar", "regex=", "=x"])
def test_unknown_back_ends_and_kinds_are_refused(value: str) -> None:
    with pytest.raises(ValidationError, match="constraint_backend"):
        Settings(**flags(constraint_backend=value))


@pytest.mark.parametrize(
    "name",
    [
        "max_grammar_bytes",
        "max_grammar_depth",
        "grammar_timeout",
        "max_grammar_items",
        "max_grammar_items_in_row",
    ],
)
def test_a_limit_of_constraints_is_above_zero(name: str) -> None:
    for value in ("0", "-1", "many"):
        with pytest.raises(ValidationError):
            Settings(**flags(**{name: value}))
