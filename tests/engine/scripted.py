"""Constraints that follow a script, and whose masks take as many steps as the script says."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from tokenloom_engine.constraints.base import Bitmask, Captures, Constraint
from tokenloom_engine.constraints.outlook import BITS
from tokenloom_engine.constraints.spec import ConstraintSpec

FREE = range(1024, 8192)
"""Token ids that a state without a forced token allows."""
FORCED = 100
"""The first of the token ids that are forced."""


class Gate:
    """Opens from one step to the next; masks wait behind it for some steps."""

    def __init__(self) -> None:
        self._step = 0
        self._is_open = False
        self._moved = threading.Condition()

    def next_step(self) -> None:
        """Let those pass whose step has come."""
        with self._moved:
            self._step += 1
            self._moved.notify_all()

    def open(self) -> None:
        """Let everybody pass from now on."""
        with self._moved:
            self._is_open = True
            self._moved.notify_all()

    def close(self) -> None:
        """Let nobody pass any more before it is time."""
        with self._moved:
            self._is_open = False

    def wait(self, num_steps: int) -> None:
        """Return so many steps later."""
        with self._moved:
            step = self._step + num_steps
            self._moved.wait_for(lambda: self._is_open or self._step >= step)


@dataclass
class ScriptedConstraint:
    """Forces a token in some places of the text, and allows any of FREE in the others.

    It tells `at_once` forced tokens at most, as a library that looks ahead so far, and of those at
    the beginning one.
    """

    seed: int
    num_tokens: int
    is_forced: list[bool] = field(init=False)
    accepted: list[int] = field(default_factory=list)
    error: str | None = None
    is_dear: bool = False
    temperature: float | None = None

    def __post_init__(self) -> None:
        draw = random.Random(self.seed)
        self.at_once = draw.choice([1, 3, 100])
        self.is_forced = []
        while len(self.is_forced) < self.num_tokens:
            self.is_forced += [draw.random() < 0.6] * draw.choice([1, 2, 5, 20, 50])
        self.delays = [draw.choice([0, 0, 0, 0, 1, 3]) for _ in range(self.num_tokens)]

    @property
    def is_accepting(self) -> bool:
        return self.is_terminated

    @property
    def is_terminated(self) -> bool:
        return len(self.accepted) >= self.num_tokens

    def token(self, position: int) -> int | None:
        """The token that is forced there, if one is."""
        return FORCED + position % 500 if self.is_forced[position] else None

    def allows(self, position: int, id: int) -> bool:
        forced = self.token(position)
        return id in FREE if forced is None else id == forced

    def accept_tokens(self, ids: Sequence[int]) -> bool:
        for id in ids:
            if self.is_terminated or not self.allows(len(self.accepted), id):
                self.error = "not allowed"
                return False
            self.accepted.append(id)
        return True

    def validate_tokens(self, ids: Sequence[int], *, briefly: bool = False) -> int:
        for count, id in enumerate(ids):
            position = len(self.accepted) + count
            if position >= self.num_tokens or not self.allows(position, id):
                return count
        return len(ids)

    def forced_tokens(self) -> list[int]:
        forced: list[int] = []
        most = self.at_once if self.accepted else 1
        for position in range(len(self.accepted), self.num_tokens)[:most]:
            id = self.token(position)
            if id is None:
                break
            forced.append(id)
        return forced

    def rollback(self, count: int) -> None:
        del self.accepted[len(self.accepted) - count :]

    def reset(self) -> None:
        self.accepted.clear()

    def fork(self) -> Constraint:
        raise NotImplementedError

    def captures(self) -> Captures:
        return {}

    def fill(self, bitmask: Bitmask, row: int) -> None:
        """Write what is allowed now."""
        bitmask[row] = 0
        if self.is_terminated:
            return
        forced = self.token(len(self.accepted))
        if forced is None:
            bitmask[row, FREE.start // 32 : FREE.stop // 32] = -1
        else:
            bitmask[row, forced // 32] = BITS[forced % 32]


class ScriptedBackend:
    """See ConstraintBackend. Specs come from `scripted_spec`."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def validate(self, spec: ConstraintSpec) -> list[str]:
        return []

    def create(self, spec: ConstraintSpec) -> Constraint:
        return ScriptedConstraint(**json.loads(spec.value))

    def fill_bitmasks(self, rows: Sequence[tuple[Constraint, int]], bitmask: Bitmask) -> None:
        for constraint, row in rows:
            assert isinstance(constraint, ScriptedConstraint)
            if not constraint.is_terminated:
                self._gate.wait(constraint.delays[len(constraint.accepted)])
            constraint.fill(bitmask, row)


def scripted_spec(seed: int, num_tokens: int) -> ConstraintSpec:
    """A text of so many tokens; what is forced and what is late follows from the seed."""
    return ConstraintSpec("regex", json.dumps({"seed": seed, "num_tokens": num_tokens}))
