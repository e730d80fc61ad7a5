"""A GPU's failures and limits, as far as they show without one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
import zmq

from tests.engine.conftest import Encode
from tests.engine.running import run, submission
from tokenloom_engine.batch import Batch
from tokenloom_engine.config import EngineConfig
from tokenloom_engine.engine import Engine
from tokenloom_engine.errors import DeviceError
from tokenloom_engine.memory import memory_for_kv_cache
from tokenloom_engine.messages import Fatal, Outbound, Ready
from tokenloom_engine.model import pick_device

GIGABYTE = 10**9
ILLEGAL = "CUDA error: an illegal memory access was encountered"
FAILING_PROCESS = f"""
import sys
import torch
from tokenloom_engine import process
from tokenloom_engine.model_runner import ModelRunner

def get_logits(runner, batch):
    raise torch.AcceleratorError("{ILLEGAL}\\nCUDA kernel errors may be reported later")

ModelRunner.get_logits = get_logits
sys.exit(process.main())
"""


def test_the_default_device_has_the_index_that_torch_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch checks the index itself, before it asks the driver for what is replaced here."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda.memory, "_lazy_init", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (60 * GIGABYTE, 80 * GIGABYTE))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 16 * GIGABYTE)
    monkeypatch.setattr(torch._C, "_cuda_getMemoryFraction", lambda _: 0.5, raising=False)
    for name in ("auto", "cuda"):
        device = pick_device(name)
        assert device == torch.device("cuda", 1)
        assert memory_for_kv_cache(device) == pytest.approx((0.5 * 80 - 16 - 8) * GIGABYTE)


def failing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> Callable[[], bool]:
    """Let the second forward fail; returns whether that has happened."""
    get_logits = engine._runner.get_logits
    num_forwards = 0

    def broken(batch: Batch) -> torch.Tensor:
        nonlocal num_forwards
        num_forwards += 1
        if num_forwards == 2:
            raise error
        return get_logits(batch)

    monkeypatch.setattr(engine._runner, "get_logits", broken)
    return lambda: num_forwards >= 2


def test_a_forward_for_which_memory_is_missing_ends_its_sequences_alone(
    engine: Engine, encode: Encode, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_failed = failing(engine, monkeypatch, torch.OutOfMemoryError("CUDA out of memory"))
    prompt = encode("Once upon a time")
    results = run(engine, [submission(0, prompt, 6), submission(1, prompt, 6)])
    assert has_failed()
    for result in results.values():
        assert result.error == "OutOfMemoryError: CUDA out of memory"
    assert len(run(engine, [submission(2, prompt, 6)])[2].ids) == 6


def test_a_device_that_failed_ends_the_engine(
    engine: Engine, encode: Encode, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(engine, monkeypatch, torch.AcceleratorError(f"{ILLEGAL}\nmore of it"))
    engine.submit(submission(0, encode("Once upon a time"), 6))
    engine.step()
    with pytest.raises(DeviceError) as raised:
        engine.step()
    assert str(raised.value) == f"the device failed: {ILLEGAL}"
    engine.abort(0)


def test_the_process_of_a_device_that_failed_says_so_and_ends(
    model_path: Path, encode: Encode, tmp_path: Path
) -> None:
    """What the front does then is in the supervisor's tests: it starts another one."""
    address = f"ipc://{tmp_path}/engine"
    config = EngineConfig(model_id=str(model_path), max_batch_total_tokens=512)
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PAIR)
    socket.bind(address)
    command = [sys.executable, "-c", FAILING_PROCESS, address, msgspec.json.encode(config).decode()]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            decoder = msgspec.msgpack.Decoder(Outbound)
            while not isinstance(decoder.decode(_received(socket)), Ready):
                pass
            submit = submission(0, encode("Once upon a time"), 6)
            socket.send(msgspec.msgpack.encode(submit))
            while not isinstance(message := decoder.decode(_received(socket)), Fatal):
                pass
            assert message.message == f"the device failed: {ILLEGAL}"
            assert process.wait(30) == 1
        finally:
            process.kill()
            socket.close()


def _received(socket: zmq.Socket[bytes]) -> bytes:
    assert socket.poll(60_000), "nothing comes"
    return socket.recv()
