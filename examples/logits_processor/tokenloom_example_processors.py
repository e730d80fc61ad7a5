"""Three logits processors: one of our own, and two of transformers' own."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

import torch
from tokenizers import Tokenizer
from transformers import MinPLogitsWarper, NoRepeatNGramLogitsProcessor

from tokenloom_engine.logits_processors import (
    Args,
    PoolingFactory,
    ProcessorContext,
    from_transformers,
)

MAX_PHRASES = 8
MAX_CHARACTERS = 80
"""Finding a phrase's tokens takes 2 ms, in which no other request gets a token."""

min_p = from_transformers(MinPLogitsWarper)
no_repeat_ngram = from_transformers(NoRepeatNGramLogitsProcessor)


class TokenTexts:
    """The texts of all tokens, sorted, to find those with a given beginning."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        # Beside another token, because some tokenizers drop white space where a text begins.
        other = tokenizer.encode("a", add_special_tokens=False).ids[-1:]
        skip = len(tokenizer.decode(other))
        size = max(tokenizer.get_vocab().values()) + 1
        self.by_id = [tokenizer.decode([*other, id])[skip:] for id in range(size)]
        self._sorted = sorted((text, id) for id, text in enumerate(self.by_id) if text)

    def beginning_with(self, start: str) -> list[int]:
        """The tokens whose texts begin so."""
        first = bisect_left(self._sorted, (start,))
        last = bisect_left(self._sorted, (start + chr(0x10FFFF),))
        return [id for _, id in self._sorted[first:last]]

    def containing(self, part: str) -> list[int]:
        """The tokens with this anywhere in their texts."""
        return [id for id, text in enumerate(self.by_id) if part in text]


class PhraseBan:
    """Rules out each token that would complete one of some phrases, for one sequence."""

    def __init__(self, phrases: list[str], texts: TokenTexts) -> None:
        self._texts = texts
        self._always = {id for phrase in phrases for id in texts.containing(phrase)}
        """Tokens with a whole phrase in them."""
        self._after: dict[str, list[int]] = defaultdict(list)
        """By the first part of a phrase: the tokens that complete it."""
        for phrase in phrases:
            for cut in range(1, len(phrase)):
                self._after[phrase[:cut]] += texts.beginning_with(phrase[cut:])
        self._longest = max(len(phrase) for phrase in phrases)
        self.reset()

    def reset(self) -> None:
        """Forget the sequence."""
        self._tail = ""
        """The end of its text, as far as a phrase may have begun in it."""
        self._num_seen = 0

    def __call__(self, ids: Sequence[int], scores: torch.Tensor, /) -> torch.Tensor:
        """Take the tokens since the last call, and rule out those that must not follow."""
        # The prompt is long: only its end matters. Later, one token came, or several if forced.
        new = ids[max(self._num_seen, len(ids) - self._longest) :]
        self._num_seen = len(ids)
        text = self._tail + "".join(self._texts.by_id[id] for id in new)
        self._tail = text[-self._longest :]
        banned = set(self._always)
        for start, completing in self._after.items():
            if self._tail.endswith(start):
                banned.update(completing)
        scores[list(banned)] = -torch.inf
        return scores


class BannedPhrases(PoolingFactory):
    """`{"phrases": ["New York"]}`: the text contains none of these."""

    def __init__(self, context: ProcessorContext) -> None:
        super().__init__(context)
        self._texts = TokenTexts(Tokenizer.from_file(context.tokenizer_file))

    def create(self, args: Args) -> PhraseBan:
        """See PoolingFactory."""
        if args.keys() != {"phrases"}:
            raise ValueError("it takes `phrases` and nothing else")
        phrases = args["phrases"]
        if not isinstance(phrases, list) or not 1 <= len(phrases) <= MAX_PHRASES:
            raise ValueError(f"`phrases` must be a list of 1 to {MAX_PHRASES} strings")
        for phrase in phrases:
            if not isinstance(phrase, str) or not 1 <= len(phrase) <= MAX_CHARACTERS:
                raise ValueError(f"a phrase must have 1 to {MAX_CHARACTERS} characters")
        return PhraseBan(phrases, self._texts)
