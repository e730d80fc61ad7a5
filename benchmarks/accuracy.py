"""What fewer bits cost: perplexity and agreement of each way to compute, on the same text.

The text is that of --text, or else of the licences that come with the installed packages: prose
that no setting here was chosen by.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from benchmarks.report import print_line
from tokenloom_engine.config import EngineConfig
from tokenloom_engine.engine import Engine
from tokenloom_engine.messages import LogprobParams, SamplingParams, StoppingParams, Submit
from tokenloom_server.bundled_model import bundled_model_path

WAYS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantize": "int8"},
}
"""The first is what the others are compared with."""
WINDOW = 512
"""Tokens of a prompt; each is scored by those before it."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Of every token of the text but the first of each window."""

    logprobs: list[float]
    best: list[int]
    """The most probable token in each place."""

    def figures(self, reference: Scores) -> dict[str, Any]:
        """Beside those of another way to compute."""
        count = len(self.logprobs)
        same = sum(a == b for a, b in zip(self.best, reference.best, strict=True))
        perplexity = math.exp(-sum(self.logprobs) / count)
        return {
            "tokens": count,
            "perplexity": round(perplexity, 4),
            "perplexity_ratio": round(perplexity / math.exp(-sum(reference.logprobs) / count), 4),
            "same_best_token": round(same / count, 4),
        }


def score(settings: dict[str, Any], model_id: str, text: str, most_tokens: int) -> Scores:
    """Score the text, window by window."""
    engine = Engine(
        EngineConfig(
            model_id=model_id, max_batch_total_tokens=8 * WINDOW, prefix_caching=False, **settings
        )
    )
    tokenizer = Tokenizer.from_file(engine.model.tokenizer_file)
    ids = tokenizer.encode(text, add_special_tokens=False).ids[:most_tokens]
    scores = Scores([], [])
    for start in range(0, len(ids) - WINDOW + 1, WINDOW):
        engine.submit(_submission(ids[start : start + WINDOW]))
        while engine.has_work:
            for output in engine.step().outputs:
                for token in (output.prompt or [])[1:]:
                    assert token.logprob is not None and token.top
                    scores.logprobs.append(token.logprob)
                    scores.best.append(token.top[0].id)
    engine.close()
    return scores


def main() -> int:
    """Print a line for each way to compute."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-id", default=str(bundled_model_path()))
    parser.add_argument("--text", type=Path)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    options = parser.parse_args()
    text = options.text.read_text() if options.text else "\n".join(_licences())
    reference: Scores | None = None
    for way in options.ways:
        scores = score(WAYS[way], options.model_id, text, options.tokens)
        reference = reference or scores
        print_line({"measured": "accuracy", "way": way, **scores.figures(reference)})
        gc.collect()
    return 0


def _licences() -> Iterator[str]:
    """Each text once, in the order of the packages' names."""
    seen: set[str] = set()
    for distribution in sorted(distributions(), key=lambda d: str(d.metadata["Name"]).lower()):
        for file in distribution.files or ():
            if "licenses" in file.parts or file.name.upper().startswith("LICENSE"):
                path = Path(str(file.locate()))
                if path.is_file() and path.suffix in ("", ".txt", ".md"):
                    text = path.read_text(errors="ignore")
                    if text not in seen:
                        seen.add(text)
                        yield text


def _submission(ids: list[int]) -> Submit:
    return Submit(
        id=0,
        prompt_ids=ids,
        sampling=SamplingParams(),
        stopping=StoppingParams(max_new_tokens=1),
        logprobs=LogprobParams(prompt=True, top_n_tokens=1),
    )


if __name__ == "__main__":
    sys.exit(main())
