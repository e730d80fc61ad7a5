"""The router's settings."""

from __future__ import annotations

from dataclasses import dataclass

from tokenloom_engine.constraints.config import ConstraintConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """Frozen settings of the router. `None` means: chosen from the loaded model."""

    max_concurrent_requests: int = 128
    """Permits: sequences that may be queued or running at once."""
    max_best_of: int = 2
    max_stop_sequences: int = 4
    max_top_n_tokens: int = 5
    max_input_tokens: int | None = None
    max_total_tokens: int | None = None
    validation_workers: int = 2
    tokenizer_config_path: str | None = None
    """A tokenizer_config.json to take the chat template from, instead of the model's."""
    parses_control_tokens: bool = False
    """Whether what spells a special token in a chat's messages is one."""
    generation_config: bool = True
    """Whether the model's generation_config.json has a say in how to sample."""
    engine_stall_timeout: float = 30.0
    """Seconds that the engine may be silent before it is killed and started again."""
    disable_grammar_support: bool = False
    disable_forced_tokens: bool = False
    constraints: ConstraintConfig = ConstraintConfig()
    """The same as the engine's."""
