"""The processes among which a model is spread: each computes its heads, and keeps their cache."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from transformers import AutoConfig

from tokenloom_engine.batch import Row
from tokenloom_engine.child_environment import child_environment
from tokenloom_engine.config import EngineConfig
from tokenloom_engine.errors import LoadError, one_line
from tokenloom_engine.shard_process import ShardProcess
from tokenloom_engine.shard_rows import encode_rows

HOST = "127.0.0.1"
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
INTERFACES = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
"""All of them are on this machine, and nobody else shall reach them."""


def count_shards(config: EngineConfig, device: torch.device) -> int:
    """How many there are to be. Raises LoadError if they cannot be."""
    count = config.num_shard
    num_gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    if count is None:
        if num_gpus < 2:
            raise LoadError(
                "`sharded` is true, which is a shard for each GPU, and there are not several to be "
                f"seen ({num_gpus}): give their number as `num_shard`"
            )
        return num_gpus
    if device.type == "cuda":
        check_gpus(config, count, num_gpus)
    if count == 1:
        return 1
    if device.type == "cpu" and torch.accelerator.is_available():
        raise LoadError(
            f"`num_shard` is {count} and `device` is cpu where there is a GPU: hide it from the "
            "server, with CUDA_VISIBLE_DEVICES set to nothing"
        )
    if config.quantize is not None:
        raise LoadError(
            f"`quantize` {config.quantize} needs a whole model, and `num_shard` is {count}: "
            "give one of them"
        )
    return count


def check_gpus(config: EngineConfig, count: int, num_gpus: int) -> None:
    """Raise LoadError if there are not enough. The first replica sees those of all replicas."""
    total = count * config.replicas
    if num_gpus >= (total if config.replica_index == 0 else count):
        return
    if config.replicas == 1:
        raise LoadError(f"`num_shard` is {count}, and torch sees {num_gpus} GPUs: give no more")
    raise LoadError(
        f"`replicas` is {config.replicas} and `num_shard` is {count}: they need {total} GPUs, "
        f"and torch sees {num_gpus}: lower one of them"
    )


def check_divisible(model_path: Path, count: int, *, trust_remote_code: bool) -> None:
    """See whether so many shards have equally many heads. Raises LoadError."""
    try:
        config = AutoConfig.from_pretrained(
            model_path, local_files_only=True, trust_remote_code=trust_remote_code
        ).get_text_config()
    except Exception as error:  # whatever a broken or foreign model makes transformers raise
        raise LoadError(f"cannot load the model {model_path}: {one_line(error)}") from error
    if not getattr(config, "base_model_tp_plan", None):
        raise LoadError(
            f"`num_shard` is {count}, and transformers has no plan to spread {config.model_type!r} "
            "models: leave it at 1"
        )
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    most = math.gcd(heads, kv_heads)
    if most % count:
        possible = ", ".join(str(n) for n in range(1, most + 1) if most % n == 0)
        raise LoadError(
            f"`num_shard` is {count}, which does not divide the model's {heads} query heads and "
            f"{kv_heads} key-value heads: it can be {possible}"
        )


class Shards:
    """All of them, as one of them sees them."""

    def __init__(self, rank: int, count: int, device: torch.device) -> None:
        self.rank = rank
        self.count = count
        self._device = device
        self._others: list[ShardProcess] = []

    @classmethod
    def lead(
        cls,
        config: EngineConfig,
        model_path: Path,
        count: int,
        device: torch.device,
        on_loss: Callable[[], None],
    ) -> Shards:
        """Start the others and be rank 0. Raises LoadError.

        They load the model from `model_path`. `on_loss` is called in another thread if one ends.
        """
        if dist.is_initialized():
            raise LoadError("this process is part of a group of torch.distributed already")
        listener = socket.socket()
        listener.bind((HOST, 0))
        listener.listen()
        port = listener.getsockname()[1]
        store = TCPStore(
            HOST,
            port,
            count,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        for name, value in INTERFACES.items():
            os.environ.setdefault(name, value)
        settings = msgspec.structs.replace(
            config, model_id=str(model_path), revision=None, num_shard=count, device=device.type
        )
        shards = cls(0, count, device)
        try:
            for rank in range(1, count):
                environment = {**child_environment(), **_environment(rank, count, port)}
                arguments = [msgspec.json.encode(settings).decode()]
                shards._others.append(ShardProcess(rank, arguments, environment, on_loss))
        except OSError as error:
            raise LoadError(f"a shard cannot be started: {error}") from error
        shards._meet(store)
        return shards

    @classmethod
    def join(cls, device: torch.device) -> Shards:
        """Be the rank that the environment says."""
        rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        store = TCPStore(
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), count, is_master=False
        )
        shards = cls(rank, count, device)
        shards._meet(store)
        return shards

    def least(self, number: int) -> int:
        """The least of what all of them say. All must ask."""
        numbers = torch.tensor([number], device=self._device)
        dist.all_reduce(numbers, dist.ReduceOp.MIN)
        return int(numbers.item())

    def send(self, rows: list[Row], block_size: int) -> None:
        """Let the others run the same forward. They have nobody to tell."""
        if self._others:
            message = encode_rows(rows, block_size)
            for other in self._others:
                other.send(message)

    def give_up(self) -> None:
        """End the others at once: they are in the midst of a forward that this one has left."""
        for other in self._others:
            other.kill()

    def close(self) -> None:
        """Leave, and let those end that were started."""
        for other in self._others:
            other.close()
        dist.destroy_process_group()
        for other in self._others:
            other.join()

    def _meet(self, store: TCPStore) -> None:
        device_id = None
        if self._device.type == "cuda":
            device_id = torch.device("cuda", self.rank)
            torch.cuda.set_device(device_id)
        dist.init_process_group(
            BACKENDS[self._device.type],
            store=store,
            rank=self.rank,
            world_size=self.count,
            device_id=device_id,
        )


def _environment(rank: int, count: int, port: int) -> dict[str, str]:
    """What torchrun would set; torch and transformers look for it."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(port),
    }
