"""The engine's settings."""

from __future__ import annotations

import msgspec

from tokenloom_engine.constraints.config import ConstraintConfig


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Frozen settings of one engine; crosses the process border as JSON.

    `None` means: chosen from the model and the machine when the model is loaded.
    """

    model_id: str
    """Local folder, Hub id, or path of a GGUF file."""
    revision: str | None = None
    dtype: str = "auto"
    """auto, bfloat16, float16 or float32."""
    device: str = "auto"
    """auto, cpu or cuda."""
    num_shard: int | None = 1
    """Processes among which the model is spread, a GPU each; None is as many as there are GPUs."""
    replicas: int = 1
    """Engines on this machine, this one included. On a CPU they share its cores and memory."""
    replica_index: int = 0
    """Which of them this one is."""
    quantize: str | None = None
    """How weights are kept: int8, or None for as they are in `dtype`."""
    rope_scaling: str | None = None
    """linear or dynamic: scales the rotary embedding of a model that has a plain one, by..."""
    rope_factor: float | None = None
    """...this, and so lengthens its context; None is as its config.json says. `linear` if alone."""
    trust_remote_code: bool = False
    attention: str = "auto"
    """auto or the name of a module in `attention/`."""
    cuda_graphs: tuple[int, ...] | None = None
    """Numbers of rows for which decode forwards are recorded; 0 or () is none, None the usual."""
    launch_early: bool | None = None
    """Whether the next forward begins before the last tokens are put into words; None is where the
    device computes beside the host."""
    disable_custom_kernels: bool = False
    """Compute with torch alone."""
    num_threads: int | None = None
    nice: int = 0
    """Added to the niceness of the engine's process: less than 0 has the cores before others."""
    cuda_memory_fraction: float = 1.0
    """Share of a GPU's memory that this process may take."""
    max_total_tokens: int | None = None
    max_batch_total_tokens: int | None = None
    max_batch_prefill_tokens: int | None = None
    max_batch_size: int | None = None
    max_waiting_tokens: int = 20
    waiting_served_ratio: float = 0.0
    speculate: int | None = None
    """Draft tokens a step that a sequence may have verified at most; 0 is off, None is on where
    that cannot change how logits are rounded."""
    block_size: int | None = None
    """Tokens in a block of the KV cache; None is what suits the attention back end."""
    prefix_caching: bool = True
    watermark_gamma: float = 0.5
    """Share of the vocabulary that a watermark prefers."""
    watermark_delta: float = 2.0
    """By how much it does."""
    constraints: ConstraintConfig = ConstraintConfig()
    json_output: bool = False
    log_level: str = "info"

    @property
    def log_fields(self) -> dict[str, object]:
        """Fields of each log line about this engine."""
        return {"replica": self.replica_index} if self.replicas > 1 else {}
