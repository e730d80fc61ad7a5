"""The server's settings: one field a flag."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import FiniteFloat, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from tokenloom_engine.constraints.spec import ConstraintKind
from tokenloom_server.environment import Environment, model_storage
from tokenloom_server.flag import (
    BATCHING,
    CONSTRAINTS,
    ENGINE,
    HTTP,
    LIMITS,
    MODEL,
    OPERATION,
    TGI,
    flag,
)
from tokenloom_server.flag_types import (
    Address,
    Backends,
    CallFormatName,
    Endpoint,
    File,
    Key,
    Level,
    MaybeSwitch,
    Quantization,
    ReasoningOption,
    Route,
    Sizes,
    Switch,
    Texts,
)
from tokenloom_server.flag_values import as_backends, read_key
from tokenloom_server.tgi_flags import refusal


class Settings(BaseSettings):
    """Everything that can be set, under TGI's names.

    A field is the flag of the same name (`--model-id`) and the environment variable in upper
    case (`MODEL_ID`); the flag wins. An empty variable counts as unset, except that of an API key.
    A switch is on where its flag stands, and where its variable is not n, no, f, false, off or 0.
    None means: chosen from the model and the machine.
    """

    model_config = SettingsConfigDict(frozen=True, env_ignore_empty=True)

    model_id: str | None = flag(
        None,
        MODEL,
        "local folder, Hub id or GGUF file; without it the bundled SmolLM2-135M-Instruct",
    )
    revision: str | None = flag(None, MODEL, "branch, tag or commit of a Hub model")
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = flag(
        "auto", MODEL, "auto is bfloat16 where the device has it in hardware, else float32"
    )
    quantize: Quantization = flag(None, MODEL, "how to keep the weights: int8; without it in dtype")
    rope_scaling: Literal["linear", "dynamic"] | None = flag(
        None,
        MODEL,
        "lengthen the context of a model with a plain rotary embedding by rope-factor; without it "
        "as its config.json says",
    )
    rope_factor: FiniteFloat | None = flag(
        None, MODEL, "by how much rope-scaling, linear if that is not given, does so", ge=1
    )
    trust_remote_code: Switch = flag(False, MODEL, "run the code that comes with a Hub model")
    tool_call_parser: CallFormatName = flag(
        "auto",
        MODEL,
        "how the model writes calls of tools: auto (as its chat template says), hermes, llama3, "
        "mistral or json",
    )
    reasoning_parser: ReasoningOption = flag(
        "none",
        MODEL,
        "what a model's reasoning stands between: none, think (<think> and </think>), or two tags, "
        "START,END",
    )
    generation_config: Literal["auto", "none"] = flag(
        "auto",
        MODEL,
        "what OpenAI's routes sample with where a request does not say: auto (as the model's "
        "generation_config.json has it) or none (OpenAI's defaults)",
    )
    tokenizer_config_path: File = flag(
        None, MODEL, "a tokenizer_config.json to take the chat template from, not the model's"
    )
    chat_special_tokens: Literal["text", "parse"] = flag(
        "text",
        MODEL,
        "what spells a special token in a chat's messages: text, or parse, which lets it be one",
    )
    served_model_name: Texts = flag(
        (),
        MODEL,
        "name of the model on OpenAI's routes, may be repeated; without it its own",
    )
    huggingface_hub_cache: str | None = flag(
        None, MODEL, "folder that Hub models are kept in; without it the Hub library's own"
    )

    hostname: Address = flag("0.0.0.0", HTTP, "IP address to listen on")
    port: int = flag(3000, HTTP, "port to listen on; 0 takes a free one", ge=0, le=65535, short="p")
    predict_route: Route = flag(
        None, HTTP, "further path of /vertex; a route that is there already keeps its path"
    )
    health_route: Route = flag(
        None, HTTP, "further path of /health; a route that is there already keeps its path"
    )
    api_key: Key = flag(
        None, HTTP, "generating and tokenizing then need `Authorization: Bearer API_KEY`"
    )
    api_key_file: str | None = flag(
        None, HTTP, "file that holds the API key, which other users cannot see in the process list"
    )
    cors_allow_origin: Texts = flag(
        (), HTTP, "origin that browsers may call from, may be repeated; without it any"
    )
    strict_fields: Switch = flag(
        False,
        HTTP,
        "refuse unknown fields on TGI's routes; without it they are ignored and named in the "
        "header x-ignored-fields",
    )
    payload_limit: int = flag(2_000_000, HTTP, "largest request body in bytes", gt=0)
    max_header_bytes: int = flag(
        32_768, HTTP, "largest request line, header and trailer together in bytes", gt=0
    )
    header_timeout: FiniteFloat = flag(20.0, HTTP, "seconds for a request's header to come", gt=0)
    body_timeout: FiniteFloat = flag(60.0, HTTP, "seconds for a request's body to come", gt=0)
    send_timeout: FiniteFloat = flag(
        60.0, HTTP, "seconds without progress after which a client that does not read is left", gt=0
    )
    max_connections: int | None = flag(
        None, HTTP, "open connections; default: 4096, or as the limit of open files allows", gt=0
    )
    access_log: Switch = flag(
        False, HTTP, "log a line for each request: id, route, status, tokens and times"
    )
    compute_type: str | None = flag(
        None, HTTP, "value of the response header x-compute-type; without it 1-DEVICE"
    )

    max_concurrent_requests: int = flag(
        128, LIMITS, "requests at once; a further one is answered 429", gt=0
    )
    max_input_tokens: int | None = flag(
        None, LIMITS, "longest prompt; without it max-total-tokens - 1", gt=0
    )
    max_total_tokens: int | None = flag(
        None, LIMITS, "prompt and output together; without it what model and memory allow", gt=0
    )
    max_best_of: int = flag(2, LIMITS, "largest `best_of`", gt=0)
    max_stop_sequences: int = flag(4, LIMITS, "most strings in `stop`", ge=0)
    max_top_n_tokens: int = flag(5, LIMITS, "largest `top_n_tokens`", ge=0)
    max_client_batch_size: int = flag(
        4, LIMITS, "most prompts in one request of /v1/completions", gt=0
    )
    watermark_gamma: FiniteFloat = flag(
        0.5, LIMITS, "share of the vocabulary that `watermark` prefers", gt=0, le=1
    )
    watermark_delta: FiniteFloat = flag(2.0, LIMITS, "by how much `watermark` prefers it")
    validation_workers: int = flag(2, LIMITS, "threads that validate and tokenize", gt=0)

    max_batch_prefill_tokens: int | None = flag(
        None, BATCHING, "most prompt tokens in a step; longer prompts are cut in chunks", gt=0
    )
    max_batch_total_tokens: int | None = flag(
        None, BATCHING, "tokens that the KV cache holds; without it as the memory allows", gt=0
    )
    max_batch_size: int | None = flag(None, BATCHING, "most requests in a batch", gt=0)
    waiting_served_ratio: FiniteFloat = flag(
        0.0,
        BATCHING,
        "admit waiting requests when there are this many for each running one; 0 is at once",
        ge=0,
    )
    max_waiting_tokens: int = flag(
        20, BATCHING, "admit waiting requests after this many steps whatever the ratio", ge=0
    )
    disable_prefix_caching: Switch = flag(
        False, BATCHING, "compute equal beginnings of prompts anew each time"
    )
    block_size: int | None = flag(
        None,
        BATCHING,
        "tokens in a block of the KV cache; without it 32, and 256 where attention is varlen",
        gt=0,
    )
    speculate: int | None = flag(
        None,
        BATCHING,
        "most tokens of a request that are guessed, from what its text said before, and verified "
        "in one step; 0 is off; without it 16 where a CPU's kernels compute the model, else 0",
        ge=0,
        le=64,
    )

    device: Literal["auto", "cpu", "cuda"] = flag("auto", ENGINE, "where the model runs")
    num_shard: int | None = flag(
        None,
        ENGINE,
        "processes that the model's heads are spread over, which must divide by it; a GPU each, "
        "or shares of a CPU; without it 1",
        gt=0,
    )
    sharded: MaybeSwitch = flag(
        None, ENGINE, "true is as many shards as there are GPUs, unless num-shard says how many"
    )
    replicas: int = flag(
        1,
        ENGINE,
        "engine processes, each with the whole model and with GPUs of its own (num-shard of them), "
        "or its share of the CPU's cores and memory; requests go to the one that has their "
        "prompt's prefix cached, or the least to do",
        gt=0,
    )
    attention: Literal["auto", "cpu", "sdpa", "varlen"] = flag(
        "auto",
        ENGINE,
        "attention back end; auto is varlen on a GPU that it can serve, and cpu where the CPU "
        "kernels can be built",
    )
    cuda_graphs: Sizes = flag(
        (),
        ENGINE,
        "numbers of requests for whose decoding a GPU's work is recorded at start, by commas; 0 is "
        "none, without it 1, 2, 4 and so on to 128",
    )
    disable_custom_kernels: Switch = flag(
        False, ENGINE, "compute with torch alone, without the kernels of this project"
    )
    num_threads: int | None = flag(
        None,
        ENGINE,
        "CPU threads of the engine, of each shard; without it as there are cores, within the CPU "
        "quota of a container",
        gt=0,
    )
    engine_nice: int = flag(
        0,
        ENGINE,
        "niceness of the engine's process, added to the server's own; below 0, which needs "
        "CAP_SYS_NICE, it goes before other programs that want the same cores",
        ge=-20,
        le=19,
    )
    cuda_memory_fraction: FiniteFloat = flag(
        1.0, ENGINE, "share of the GPU's memory that the engine may take", gt=0, le=1
    )
    engine_stall_timeout: FiniteFloat = flag(
        30.0,
        ENGINE,
        "seconds that the engine may make no progress before it is killed and started again",
        ge=2,
    )

    graceful_termination_timeout: int = flag(
        90,
        OPERATION,
        "seconds that running requests get to finish at shutdown",
        ge=0,
        short="g",
    )
    env: Switch = flag(
        False, OPERATION, "print what this installation runs on, then go on", short="e"
    )
    json_output: Switch = flag(False, OPERATION, "write logs as JSON, one object a line")
    log_level: Level = flag("info", OPERATION, "least important messages that are logged")
    otlp_endpoint: Endpoint = flag(
        None,
        OPERATION,
        "send spans to this OpenTelemetry collector, as http://host:4317 (gRPC) or "
        "http://host:4318/v1/traces (HTTP)",
    )
    otlp_service_name: str = flag(
        "text-generation-inference.router", OPERATION, "name of the service in the spans"
    )
    usage_stats: Literal["on", "off", "no-stack"] = flag(
        "off", OPERATION, "no usage statistics are sent, whatever this says"
    )

    disable_grammar_support: Switch = flag(False, CONSTRAINTS, "refuse requests with a grammar")
    disable_forced_tokens: Switch = flag(
        False, CONSTRAINTS, "compute the tokens one by one where a grammar leaves no choice"
    )
    constraint_backend: Backends = flag(
        (),
        CONSTRAINTS,
        "NAME, or KIND=NAME for one kind of grammar, may be repeated: the library that compiles "
        "it, llguidance or xgrammar; without it llguidance",
    )
    max_grammar_bytes: int = flag(1_000_000, CONSTRAINTS, "largest text of a grammar", gt=0)
    max_grammar_depth: int = flag(
        100, CONSTRAINTS, "deepest nesting of a JSON schema or structural tag", gt=0
    )
    grammar_timeout: FiniteFloat = flag(
        10.0, CONSTRAINTS, "seconds of CPU time that a grammar may take to compile", gt=0
    )
    max_grammar_items: int = flag(
        3_000, CONSTRAINTS, "work of a grammar at one token; what exceeds it ends its request", gt=0
    )
    max_grammar_items_in_row: int | None = flag(
        None,
        CONSTRAINTS,
        "ways to read a text that a grammar may leave open at once; without it 3000 for JSON "
        "schemas, 500 for others",
        gt=0,
    )

    max_input_length: int | None = flag(None, TGI, "older name of --max-input-tokens")
    lora_adapters: Texts = flag((), TGI, "refused")
    ngrok: Switch = flag(False, TGI, "refused")
    ngrok_authtoken: str | None = flag(None, TGI, "no effect")
    ngrok_edge: str | None = flag(None, TGI, "no effect")
    kv_cache_dtype: Literal["auto", "fp8_e4m3fn", "fp8_e5m2"] | None = flag(None, TGI, "no effect")
    enable_prefill_logprobs: Switch = flag(False, TGI, "no effect: they are always there")
    weights_cache_override: str | None = flag(None, TGI, "no effect")
    prometheus_port: int | None = flag(None, TGI, "no effect: metrics are on the server's own port")
    shard_uds_path: str | None = flag(None, TGI, "no effect")
    master_addr: str | None = flag(None, TGI, "no effect")
    master_port: int | None = flag(None, TGI, "no effect")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The flags first, then the environment."""
        return init_settings, Environment(settings_cls)

    @model_validator(mode="before")
    @classmethod
    def _take_older_names(cls, given: dict[str, Any]) -> dict[str, Any]:
        older, newer = given.get("max_input_length"), given.get("max_input_tokens")
        if older is None:
            return given
        if newer is not None:
            raise ValueError(
                f"both `max_input_tokens` ({newer}) and its older name `max_input_length` "
                f"({older}) are set: give `max_input_tokens` alone"
            )
        return {**given, "max_input_tokens": older}

    @model_validator(mode="before")
    @classmethod
    def _read_key_file(cls, given: dict[str, Any]) -> dict[str, Any]:
        file = given.get("api_key_file")
        if file is None:
            return given
        if given.get("api_key") is not None:
            raise ValueError("both `api_key` and `api_key_file` are set: give one of them")
        return {**given, "api_key": read_key(file)}

    @model_validator(mode="after")
    def _refuse_impossible_combinations(self) -> Settings:
        if not _less(self.max_input_tokens, self.max_total_tokens):
            raise ValueError("`max_input_tokens` must be < `max_total_tokens`")
        for name in ("max_batch_prefill_tokens", "max_total_tokens"):
            value, total = getattr(self, name), self.max_batch_total_tokens
            if value is not None and total is not None and value > total:
                raise ValueError(
                    f"`{name}` must be <= `max_batch_total_tokens`. Given: {value} and {total}"
                )
        if self.replicas > 1 and self.sharded and self.num_shard is None:
            raise ValueError(
                "`sharded` gives all GPUs to one engine: with `replicas`, set `num_shard` to the "
                "number of GPUs of each"
            )
        as_backends(self.constraint_backend)  # raises
        if self.model_id is None and (uri := model_storage()):
            raise ValueError(
                f"AIP_STORAGE_URI={uri} is set, but models are not read from Cloud Storage: "
                "set `model_id` to a Hub id or a folder (--model-id, MODEL_ID)"
            )
        if reason := refusal(self.given):
            raise ValueError(reason)
        return self

    @property
    def given(self) -> dict[str, object]:
        """What was set, by a flag or a variable."""
        names = (name for name in type(self).model_fields if name in self.model_fields_set)
        return {name: getattr(self, name) for name in names}

    @property
    def backends(self) -> dict[ConstraintKind, str]:
        """The constraint back end of each kind, where one is named."""
        return as_backends(self.constraint_backend)


def _less(left: int | None, right: int | None) -> bool:
    return left is None or right is None or left < right
