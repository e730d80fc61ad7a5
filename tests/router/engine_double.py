"""A small engine process for the router's tests: the real protocol, without a model.

Run as `engine_double.py [FLAG...] ADDRESS CONFIG_JSON`. It answers each `Submit` with tokens of
the prompt, one a step. The first stop string may be an order:

- `hang`: never answer; `slow`: never end; `flood`: go on past `max_new_tokens`
- `late`: never end, and send one more output after the abort
- `burst`: send all but the last output at once, and exit
- `err`: fail the sequence; `kill`: die by SIGKILL; `garbage`: send what cannot be read;
  `fatal`: say that it cannot go on
- `aborted`: the tokens' text is a list of all ids aborted so far
- `submit`: the tokens' text is the `Submit` as JSON

Flags: `--fatal`, `--crash` end it before it is ready, `--crash=1` only replica 1; `--deaf` makes
it ignore the end of its standard input; `--log=FILE` notes each start there and lets only the
first one succeed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zmq

from tokenloom_engine.config import EngineConfig
from tokenloom_engine.messages import (
    Abort,
    EngineStats,
    Fatal,
    Finish,
    Heartbeat,
    Inbound,
    ModelInfo,
    Outbound,
    Ready,
    SequenceOutput,
    StepOutputs,
    Submit,
    Token,
)

STEP_SECONDS = 0.002
HEARTBEAT_SECONDS = 0.1


def main() -> None:
    *flags, address, settings = sys.argv[1:]
    if "--deaf" not in flags:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    config = msgspec.json.decode(settings, type=EngineConfig)
    if f"--crash={config.replica_index}" in flags:
        sys.exit(3)
    if "--crash" in flags or not all(_note_start(flag) for flag in flags):
        sys.exit(3)
    double = Double(config, address)
    if "--fatal" in flags:
        double.send(Fatal("the double was told not to start"))
        sys.exit(1)
    double.send(Ready(double.model()))
    while True:
        double.step()


def _end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(0)


def _note_start(flag: str) -> bool:
    """Append the time to the log that the flag names. Return whether it was the first."""
    if not flag.startswith("--log="):
        return True
    log = Path(flag.removeprefix("--log="))
    is_first = not log.exists()
    with log.open("a") as file:
        file.write(f"{time.monotonic()}\n")
    return is_first


@dataclass
class Row:
    """One sequence."""

    submit: Submit
    num_tokens: int = 0

    @property
    def order(self) -> str:
        return self.submit.stopping.stop[0] if self.submit.stopping.stop else ""


class Double:
    """Takes messages, steps, sends messages."""

    def __init__(self, config: EngineConfig, address: str) -> None:
        self._config = config
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PAIR)
        self._socket.set_hwm(0)
        self._socket.connect(address)
        self._decoder: msgspec.msgpack.Decoder[Inbound] = msgspec.msgpack.Decoder(Inbound)
        self._rows: dict[int, Row] = {}
        self._aborted: list[int] = []
        self._sent_at = 0.0

    def send(self, message: Outbound) -> None:
        self._socket.send(msgspec.msgpack.encode(message))
        self._sent_at = time.monotonic()

    def model(self) -> ModelInfo:
        config = self._config
        return ModelInfo(
            model_id=config.model_id,
            model_path=config.model_id,
            tokenizer_file=f"{config.model_id}/tokenizer.json",
            sha=None,
            model_type="double",
            dtype="float32",
            device="cpu",
            attention="none",
            vocab_size=49152,
            eos_token_ids=[2],
            max_position_embeddings=2048,
            max_batch_total_tokens=config.max_batch_total_tokens or 4096,
            max_batch_prefill_tokens=config.max_batch_prefill_tokens or 512,
            max_batch_size=config.max_batch_size,
            block_size=4,
        )

    def step(self) -> None:
        self._drain_inbox()
        outputs: list[SequenceOutput] = []
        for id, row in list(self._rows.items()):
            outputs += self._outputs(id, row)
        if outputs:
            stats = EngineStats(
                running=len(self._rows),
                batch_tokens=len(outputs),
                decode_sequences=len(outputs),
                step_seconds=STEP_SECONDS,
            )
            self.send(StepOutputs(outputs, stats))
        elif time.monotonic() > self._sent_at + HEARTBEAT_SECONDS:
            self.send(Heartbeat())
        time.sleep(STEP_SECONDS)

    def _drain_inbox(self) -> None:
        while self._socket.poll(0):
            match self._decoder.decode(self._socket.recv()):
                case Submit() as submit:
                    self._rows[submit.id] = Row(submit)
                case Abort(id):
                    self._aborted.append(id)
                    row = self._rows.get(id)
                    if row is not None and row.order == "late":
                        self.send(StepOutputs([self._token(id, row)], EngineStats(running=1)))
                    self._rows.pop(id, None)

    def _outputs(self, id: int, row: Row) -> list[SequenceOutput]:
        match row.order:
            case "hang":
                return []
            case "kill" if row.num_tokens == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            case "garbage" if row.num_tokens == 2:
                self._socket.send(b"\xc1 no message")
                return []
            case "fatal" if row.num_tokens == 2:
                self.send(Fatal("the double was told to give up"))
                return []
            case "err" if row.num_tokens == 2:
                del self._rows[id]
                return [SequenceOutput(id, error="the double was told to fail")]
            case "burst":
                self._burst(id, row)
            case "flood":
                return [self._token(id, row) for _ in range(50)]
        return [self._token(id, row)]

    def _burst(self, id: int, row: Row) -> None:
        for _ in range(row.submit.stopping.max_new_tokens - 1):
            self.send(StepOutputs([self._token(id, row)], EngineStats()))
        self._socket.close()
        zmq.Context.instance().term()
        os._exit(4)

    def _token(self, id: int, row: Row) -> SequenceOutput:
        submit = row.submit
        started_at = None if row.num_tokens else time.monotonic()
        text = self._text(row)
        # the later submitted, the more probable
        token = Token(
            submit.prompt_ids[row.num_tokens % len(submit.prompt_ids)], text, -100.0 / (id + 1)
        )
        row.num_tokens += 1
        finish = None
        if row.num_tokens == submit.stopping.max_new_tokens and row.order not in (
            "slow",
            "late",
            "flood",
        ):
            finish = Finish("length", text * row.num_tokens, row.num_tokens, 0)
            del self._rows[id]
        return SequenceOutput(id, [token], started_at=started_at, finish=finish)

    def _text(self, row: Row) -> str:
        if row.order == "aborted":
            return json.dumps(self._aborted)
        if row.order == "submit":
            return msgspec.json.encode(row.submit).decode()
        return f"{row.submit.id} "


if __name__ == "__main__":
    main()
