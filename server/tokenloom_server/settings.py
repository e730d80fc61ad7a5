"""The server's settings: one field a flag. The only place that reads the environment."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, FiniteFloat, JsonValue, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from tokenloom_engine.constraints.spec import ConstraintKind
from tokenloom_server.flag_values import (
    as_address,
    as_backends,
    as_list,
    as_switch,
    is_address,
)

Switch = Annotated[bool, BeforeValidator(as_switch)]
Address = Annotated[str, AfterValidator(as_address)]
Backends = Annotated[tuple[str, ...], NoDecode, BeforeValidator(as_list)]
Origins = Annotated[tuple[str, ...], NoDecode, BeforeValidator(as_list)]

MODEL = "Model"
HTTP = "HTTP server"
LIMITS = "Limits of a request"
BATCHING = "Batching and memory"
ENGINE = "Engine"
CONSTRAINTS = "Constraints"


def flag(
    default: object,
    group: str,
    description: str,
    *,
    gt: int | None = None,
    ge: int | None = None,
    le: int | None = None,
) -> Any:  # noqa: ANN401 (the field's own annotation says more)
    """One setting, and the bounds of its value."""
    extra: dict[str, JsonValue] = {"group": group}
    return Field(default, description=description, json_schema_extra=extra, gt=gt, ge=ge, le=le)


class Environment(EnvSettingsSource):
    """The environment variables, without a HOSTNAME that is a name.

    Containers set HOSTNAME to the container's name. It is not meant for us then.
    """

    def __call__(self) -> dict[str, Any]:
        values = super().__call__()
        if ignored_hostname() is not None:
            values.pop("hostname", None)
        return values


def ignored_hostname() -> str | None:
    """HOSTNAME, where it is set to something else than an IP address."""
    hostname = os.environ.get("HOSTNAME")
    return None if not hostname or is_address(hostname) else hostname


class Settings(BaseSettings):
    """Everything that can be set, under TGI's names.

    A field is the flag of the same name (`--model-id`) and the environment variable in upper
    case (`MODEL_ID`); the flag wins. An empty variable counts as unset. A switch is on where its
    flag stands, and where its variable is not n, no, f, false, off or 0. None means: chosen from
    the model and the machine.
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
    trust_remote_code: Switch = flag(False, MODEL, "run the code that comes with a Hub model")

    hostname: Address = flag("0.0.0.0", HTTP, "IP address to listen on")
    port: int = flag(3000, HTTP, "port to listen on; 0 takes a free one", ge=0, le=65535)
    api_key: str | None = flag(
        None, HTTP, "generating and tokenizing then need `Authorization: Bearer API_KEY`"
    )
    cors_allow_origin: Origins = flag(
        (), HTTP, "origin that browsers may call from, may be repeated; without it any"
    )
    payload_limit: int = flag(2_000_000, HTTP, "largest request body in bytes", gt=0)
    graceful_termination_timeout: int = flag(
        90, HTTP, "seconds that running requests get to finish at shutdown", ge=0
    )
    compute_type: str | None = flag(
        None, HTTP, "value of the response header x-compute-type; without it 1-DEVICE"
    )
    json_output: Switch = flag(False, HTTP, "write logs as JSON, one object a line")

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
    block_size: int = flag(32, BATCHING, "tokens in a block of the KV cache", gt=0)

    device: Literal["auto", "cpu", "cuda"] = flag("auto", ENGINE, "where the model runs")
    attention: Literal["auto", "sdpa"] = flag("auto", ENGINE, "attention back end")
    num_threads: int | None = flag(
        None, ENGINE, "CPU threads of the engine; without it as the machine has cores", gt=0
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
        10.0, CONSTRAINTS, "seconds that a grammar may take to compile", gt=0
    )
    max_grammar_items: int = flag(
        5_000, CONSTRAINTS, "work of a grammar at one token; what exceeds it ends its request", gt=0
    )
    max_grammar_items_in_row: int | None = flag(
        None,
        CONSTRAINTS,
        "ways to read a text that a grammar may leave open at once; without it 3000 for JSON "
        "schemas, 500 for others",
        gt=0,
    )

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
        as_backends(self.constraint_backend)  # raises
        return self

    @property
    def backends(self) -> dict[ConstraintKind, str]:
        """The constraint back end of each kind, where one is named."""
        return as_backends(self.constraint_backend)


def _less(left: int | None, right: int | None) -> bool:
    return left is None or right is None or left < right
