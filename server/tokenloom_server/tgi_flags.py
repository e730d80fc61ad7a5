"""TGI's flags that have no effect here, and those that are refused because silence would harm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

NO_EFFECT = {
    "enable_prefill_logprobs": "`decoder_input_details` always brings them",
    "kv_cache_dtype": "the KV cache has the model's dtype",
    "master_addr": "all shards are on this machine",
    "master_port": "shards meet at a port that is free",
    "ngrok_authtoken": "there is no tunnel",
    "ngrok_edge": "there is no tunnel",
    "prometheus_port": "the metrics are at /metrics of the server's own port",
    "shard_uds_path": "shards meet at a port that is free",
    "weights_cache_override": "--model-id takes a local folder",
}
"""And why."""
AS_IT_IS_HERE = {"kv_cache_dtype": "auto"}
"""Values that ask for what happens anyway."""


def remarks(given: Mapping[str, object]) -> Iterator[str]:
    """One line for each flag that was given and has no effect."""
    for name, value in given.items():
        if name in NO_EFFECT and value != AS_IT_IS_HERE.get(name, False):
            yield f"--{name.replace('_', '-')} has no effect: {NO_EFFECT[name]}"
    if given.get("max_input_length") is not None:
        yield "--max-input-length is an older name of --max-input-tokens"


def refusal(given: Mapping[str, object]) -> str | None:
    """Why a flag cannot be met, if its user would be harmed by going on without it."""
    if given.get("sharded") and given.get("num_shard") == 1:
        return "`sharded` is true and `num_shard` 1: give more shards, or `sharded` false"
    if given.get("ngrok"):
        return "`ngrok` is not built: run a tunnel of your own to the server's port"
    if given.get("lora_adapters"):
        return "`lora_adapters` is not built: merge the adapter into the model's weights"
    if given.get("rope_scaling") is not None and given.get("rope_factor") is None:
        return "`rope_scaling` needs `rope_factor`, by how much the context grows"
    return None
