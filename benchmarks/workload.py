"""The requests that a benchmark sends: the same settings give the same requests."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORDS = """
    river stone lantern orchard copper meadow harbour winter candle bridge falcon granite velvet
    saffron island compass thunder marble willow ember canyon ribbon anchor glacier pepper violin
    cedar turbine pocket summit window barley cobalt mirror engine parcel feather ladder magnet
"""

PERSON_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "role": {"enum": ["captain", "cook", "navigator", "surgeon"]},
        "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
        "aboard": {"type": "boolean"},
    },
    "required": ["name", "age", "role", "code", "aboard"],
    "additionalProperties": False,
}


def read_schema(constrained: str | None) -> dict[str, Any] | None:
    """The schema in the file `constrained`; PERSON_SCHEMA for an empty name, None for None."""
    if not constrained:
        return None if constrained is None else PERSON_SCHEMA
    schema: dict[str, Any] = json.loads(Path(constrained).read_text())
    return schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Greedy requests with random words as prompts."""

    prompt_words: int
    max_tokens: int
    """Every free request generates exactly this many."""
    seed: int
    schema: dict[str, Any] | None
    """Constrains the output, which then ends where the schema is satisfied."""

    def bodies(self, concurrency: int, num_requests: int) -> Iterator[dict[str, Any]]:
        """The JSON body of each request of one level.

        Levels share no prompts, or the later ones would find theirs in the prefix cache.
        """
        draw = random.Random(f"{self.seed}/{concurrency}")
        words = WORDS.split()
        for _ in range(num_requests):
            prompt = " ".join(draw.choices(words, k=self.prompt_words))
            yield {"inputs": f"{self.task} {prompt}.", "parameters": self.parameters}

    @property
    def task(self) -> str:
        """What every prompt begins with."""
        if self.schema is None:
            return "Tell a long story with these words:"
        return "Describe a sailor as JSON, with these words in mind:"

    @property
    def parameters(self) -> dict[str, Any]:
        """The `parameters` of every request."""
        if self.schema is None:
            return {"max_new_tokens": self.max_tokens, "ignore_eos": True}
        grammar = {"type": "json", "value": self.schema}
        return {"max_new_tokens": self.max_tokens, "grammar": grammar}
