"""The requests that a benchmark sends: the same settings give the same requests."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.schemas import Schema

WORDS = """
    river stone lantern orchard copper meadow harbour winter candle bridge falcon granite velvet
    saffron island compass thunder marble willow ember canyon ribbon anchor glacier pepper violin
    cedar turbine pocket summit window barley cobalt mirror engine parcel feather ladder magnet
"""


def read_schema(file: Path) -> Schema:
    """The schema in a file."""
    schema: Schema = json.loads(file.read_text())
    return schema


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
    is_long: bool = False
    """Whether its prompt is the long one among others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests with random words as prompts."""

    prompt_words: tuple[int, ...]
    """Lengths of prompts; each has one of them, drawn at random."""
    max_tokens: int
    seed: str
    schemas: tuple[Schema, ...] = ()
    """Given to the requests in turn; without any, they are free."""
    shared_words: int = 0
    """Words before those, the same in all prompts of a level."""
    long_words: int = 0
    """Words of one prompt in each 2 * concurrency, in the place of its own. The others then end
    at different times, so that some of them stream while it comes."""

    def requests(self, concurrency: int, num_requests: int) -> Iterator[Request]:
        """The requests of one level.

        Levels share no prompts, or the later ones would find theirs in the prefix cache.
        """
        draw = random.Random(f"{self.seed}/{concurrency}")
        words = WORDS.split()
        shared = draw.choices(words, k=self.shared_words)
        for number in range(num_requests):
            turn = number % (2 * concurrency)
            is_long = self.long_words > 0 and turn == concurrency + concurrency // 2
            length = self.long_words if is_long else draw.choice(self.prompt_words)
            prompt = " ".join([*shared, *draw.choices(words, k=length)])
            max_tokens = self.max_tokens
            if self.long_words:
                max_tokens = draw.randint(-(-max_tokens // 2), max_tokens + max_tokens // 2)
            yield Request(
                prompt=f"{self.task} {prompt}.",
                max_tokens=max_tokens,
                schema=self.schemas[number % len(self.schemas)] if self.schemas else None,
                is_long=is_long,
            )

    @property
    def task(self) -> str:
        """What every prompt begins with."""
        if not self.schemas:
            return "Tell a long story with these words:"
        return "Describe something as JSON, with these words in mind:"
