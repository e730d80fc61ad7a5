"""The messages between the front, the trial process and its workers, and their frames."""

from __future__ import annotations

import msgspec

from tokenloom_engine.constraints.base import TokenizerFacts
from tokenloom_engine.constraints.config import ConstraintConfig
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.frames import framed

TOO_SLOW = "it takes too long to compile"
TOO_LARGE = "it is too large or too deeply nested to compile"


class TrialSettings(msgspec.Struct, frozen=True):
    """What the trial process needs, as its first message."""

    tokenizer: TokenizerFacts
    config: ConstraintConfig


class Trial(msgspec.Struct, frozen=True, tag="trial"):
    """Try this spec."""

    id: int
    spec: ConstraintSpec
    client: str = ""
    """Who asks: clients have equal shares of the queue."""


class Withdrawal(msgspec.Struct, frozen=True, tag="withdrawal"):
    """Nobody waits for this trial any more. It gets an answer all the same, as every trial does.

    Ignored for a trial that has had its answer.
    """

    id: int


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True, tag="verdict"):
    """How a trial went."""

    id: int
    spec: ConstraintSpec | None = None
    """What to compile instead, if that is easier."""
    warnings: list[str] = []
    refusal: str | None = None
    """Why the spec cannot become a constraint."""
    is_busy: bool = False
    """There was no room, or no CPU time, to try it: nothing is known of the spec."""
    is_final: bool = True
    """False: it holds only if the worker does not come to say more."""


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """Sent from time to time while answers are owed: the trial process runs."""


def frame(message: TrialSettings | Trial | Withdrawal | Verdict | Heartbeat) -> bytes:
    """The message as msgpack, behind its length."""
    return framed(msgspec.msgpack.encode(message))
