"""The requests that a benchmark sends: the same settings give the same requests."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.schemas import PERSON, Schema

WORDS = """
    river stone lantern orchard copper meadow harbour winter candle bridge falcon granite velvet
    saffron island compass thunder marble willow ember canyon ribbon anchor glacier pepper violin
    cedar turbine pocket summit window barley cobalt mirror engine parcel feather ladder magnet
"""


def read_schemas(constrained: str | None) -> tuple[Schema, ...]:
    """The schema in the file `constrained`; PERSON for an empty name, none for None."""
    if not constrained:
        return () if constrained is None else (PERSON,)
    schema: Schema = json.loads(Path(constrained).read_text())
    return (schema,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A greedy request, in no server's form."""

    prompt: str
    max_tokens: int
    """A free request generates exactly this many."""
    schema: Schema | None = None
    """Constrains the output, which then ends where the schema is satisfied."""
    forced_tokens: bool = True
    """False: tokens that the constraint forces are computed one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests with random words as prompts."""

    prompt_words: int
    max_tokens: int
    seed: str
    schemas: tuple[Schema, ...] = ()
    """Given to the requests in turn; without any, they are free."""

    def requests(self, concurrency: int, num_requests: int) -> Iterator[Request]:
        """The requests of one level.

        Levels share no prompts, or the later ones would find theirs in the prefix cache.
        """
        draw = random.Random(f"{self.seed}/{concurrency}")
        words = WORDS.split()
        for number in range(num_requests):
            prompt = " ".join(draw.choices(words, k=self.prompt_words))
            yield Request(
                prompt=f"{self.task} {prompt}.",
                max_tokens=self.max_tokens,
                schema=self.schemas[number % len(self.schemas)] if self.schemas else None,
            )

    @property
    def task(self) -> str:
        """What every prompt begins with."""
        if not self.schemas:
            return "Tell a long story with these words:"
        return "Describe something as JSON, with these words in mind:"
