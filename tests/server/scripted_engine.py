"""An engine process for the server's tests: the real messages, and outputs as the request says.

Run as `scripted_engine.py TOKENIZER_FILE ADDRESS CONFIG_JSON`. The first stop string is the
script: a JSON list of `SequenceOutput`, sent one a step; or `hang`: no output ever; or
`aborts`: one token whose text is the number of sequences aborted so far; or
`request id`: one token whose text is that; or `large`: one token of 8 MB, more than socket buffers
hold; or `large hang`: the same, and the sequence does not end.
Without a script the prompt's tokens are said again, one a step, as often as `max_new_tokens`
allows. The model `broken` cannot be loaded, and the model `endless` is never ready.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator

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
LARGE_BYTES = 8_000_000


class ScriptedEngine:
    """Takes messages and sends each sequence's next output, step by step."""

    def __init__(self, address: str) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PAIR)
        self._socket.connect(address)
        self._decoder: msgspec.msgpack.Decoder[Inbound] = msgspec.msgpack.Decoder(Inbound)
        self._scripts: dict[int, Iterator[SequenceOutput]] = {}
        self._num_aborted = 0
        self._sent_at = 0.0

    def send(self, message: Outbound) -> None:
        self._socket.send(msgspec.msgpack.encode(message))
        self._sent_at = time.monotonic()

    def step(self) -> None:
        while self._socket.poll(0):
            match self._decoder.decode(self._socket.recv()):
                case Submit() as submit:
                    self._scripts[submit.id] = self._script(submit)
                case Abort(id):
                    self._num_aborted += self._scripts.pop(id, None) is not None
        outputs = [_next(id, script) for id, script in self._scripts.items()]
        if any(outputs):
            self.send(StepOutputs([output for output in outputs if output], EngineStats()))
        elif time.monotonic() > self._sent_at + HEARTBEAT_SECONDS:
            self.send(Heartbeat())
        time.sleep(STEP_SECONDS)

    def _script(self, submit: Submit) -> Iterator[SequenceOutput]:
        order = submit.stopping.stop[0] if submit.stopping.stop else ""
        if order == "hang":
            return iter(())
        if order == "request id":
            return iter([_last(f"{submit.request_id}")])
        if order == "aborts":
            return iter([_last(f"{self._num_aborted}")])
        if order.startswith("large"):
            large = _last("x" * LARGE_BYTES)
            large.finish = large.finish if order == "large" else None
            return iter([large])
        if order:
            return iter(msgspec.json.decode(order, type=list[SequenceOutput]))
        return _say_again(submit)


def _next(id: int, script: Iterator[SequenceOutput]) -> SequenceOutput | None:
    output = next(script, None)
    if output is not None:
        output.id = id
    return output


def _last(text: str) -> SequenceOutput:
    return SequenceOutput(0, [Token(7, text, -1.0)], finish=Finish("length", text, 1, 0))


def _say_again(submit: Submit) -> Iterator[SequenceOutput]:
    """Each prompt token again and again; its text is its id in brackets."""
    num_tokens = submit.stopping.max_new_tokens
    texts = [f"({id})" for id in submit.prompt_ids]
    for number in range(num_tokens):
        position = number % len(texts)
        token = Token(submit.prompt_ids[position], texts[position], -0.5)
        finish = None
        if number == num_tokens - 1:
            whole = "".join(texts[index % len(texts)] for index in range(num_tokens))
            finish = Finish("length", whole, num_tokens, 0)
        yield SequenceOutput(0, [token], started_at=time.monotonic(), finish=finish)


def _model(tokenizer_file: str, config: EngineConfig) -> ModelInfo:
    return ModelInfo(
        model_id=config.model_id,
        model_path="",
        tokenizer_file=tokenizer_file,
        sha=None,
        model_type="scripted",
        dtype="float32",
        device="cpu",
        attention="sdpa",
        vocab_size=320,
        eos_token_ids=[0],
        max_position_embeddings=2048,
        max_batch_total_tokens=4096,
        max_batch_prefill_tokens=512,
        max_batch_size=None,
    )


def _end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(0)


def main() -> None:
    tokenizer_file, address, settings = sys.argv[1:]
    config = msgspec.json.decode(settings, type=EngineConfig)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    engine = ScriptedEngine(address)
    if config.model_id == "broken":
        engine.send(Fatal("the model is broken"))
        sys.exit(1)
    if config.model_id == "endless":
        sys.stderr.write("loading\n")
        sys.stderr.flush()
        time.sleep(600)
    engine.send(Ready(_model(tokenizer_file, config)))
    while True:
        engine.step()


if __name__ == "__main__":
    main()
