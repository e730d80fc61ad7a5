"""The process of a shard that is not rank 0: it runs the forwards that rank 0 runs.

Started by rank 0 as `python -m tokenloom_engine.follower CONFIG_JSON`, with the environment of
torchrun. It ends when its standard input closes or rank 0 dies.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import sys
from typing import BinaryIO

import msgspec

from tokenloom_engine.config import EngineConfig
from tokenloom_engine.frames import LENGTH_BYTES
from tokenloom_engine.logs import configure_logging, tame_libraries

logger = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1


def main() -> int:
    """Entry point."""
    # A process that is stopped would not notice that its input has closed.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    config = msgspec.json.decode(sys.argv[1], type=EngineConfig)
    # Rank 0 says the rest.
    level = "warn" if config.log_level == "info" else config.log_level
    configure_logging(json_output=config.json_output, level=level, fields=config.log_fields)
    tame_libraries(with_progress=False)
    return _follow(config, sys.stdin.buffer)


def _follow(config: EngineConfig, steps: BinaryIO) -> int:
    import torch

    from tokenloom_engine.batch import Batch
    from tokenloom_engine.errors import LoadError, one_line
    from tokenloom_engine.memory import limit_cuda_memory
    from tokenloom_engine.model_runner import ModelRunner
    from tokenloom_engine.shard_rows import decode_rows
    from tokenloom_engine.shards import Shards

    shards = Shards.join(torch.device(config.device))
    limit_cuda_memory(config.cuda_memory_fraction)
    try:
        runner = ModelRunner(config, shards)
    except LoadError as error:
        logger.error("shard %d of the model: %s", shards.rank, error)
        return 1
    except Exception as error:
        logger.debug("The model cannot be loaded", exc_info=True)
        reason = f"{type(error).__name__}: {one_line(error)}"
        logger.error("shard %d of the model: cannot load it: %s", shards.rank, reason)
        return 1
    gc.collect()
    gc.freeze()
    while (message := _read(steps)) is not None:
        rows = decode_rows(message, runner.vocabulary)
        runner.get_logits(Batch.pack(rows, runner.block_size, runner.model.device))
    shards.close()
    return 0


def _read(stream: BinaryIO) -> bytes | None:
    """The next message, or None at the end."""
    length = int.from_bytes(stream.read(LENGTH_BYTES), "little")
    message = stream.read(length)
    return message if length and len(message) == length else None


if __name__ == "__main__":
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    sys.exit(main())
