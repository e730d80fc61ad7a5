"""Prompts of mixed length, the same each time."""

from __future__ import annotations

import random

WORDS = (
    "river stone window garden letter morning engine harbour silver "
    "lantern paper winter market bridge signal forest copper candle music shadow"
)


def mixed_prompts(count: int, longest: int = 160) -> list[str]:
    """`count` prompts of 1 to `longest` words; every fourth repeats the beginning of another."""
    rng, vocabulary = random.Random(11), WORDS.split(" ")
    lengths = [1 + (longest - 1) * i // (count - 1) for i in range(count)]
    rng.shuffle(lengths)
    prompts: list[str] = []
    for i, length in enumerate(lengths):
        words = [rng.choice(vocabulary) for _ in range(length)]
        if i % 4 == 3:
            words = prompts[i - 1].split()[4:][: length // 2] + words[: length - length // 2]
        prompts.append("Tell me about the " + " ".join(words))
    return prompts
