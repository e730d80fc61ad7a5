"""The main oracle: whatever else runs, a greedy request says what transformers' generate says."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.integration.prompts import mixed_prompts
from tests.integration.serving import Json, client, generate, serve, token_ids

NEW_TOKENS = 32
CERTAIN = 0.002
"""By how much a logit must exceed the next one; other orders of sums move it by 0.0001."""
PROMPTS = mixed_prompts(32, longest=110)
SCHEMA = {
    "type": "object",
    "properties": {
        "full_name": {"type": "string", "maxLength": 24},
        "age_in_years": {"type": "integer", "minimum": 0, "maximum": 120},
        "is_active_member": {"type": "boolean"},
    },
    "required": ["full_name", "age_in_years", "is_active_member"],
    "additionalProperties": False,
}
CASES: dict[str, tuple[str, float]] = {
    "at_once": ("--speculate 0", 0.0),
    "staggered": ("--disable-prefix-caching --max-batch-prefill-tokens 16", 0.03),
    "preempted": (
        "--block-size 16 --max-total-tokens 288 --max-batch-total-tokens 400 "
        "--max-batch-prefill-tokens 400 --speculate 1",
        0.0,
    ),
    "preempted_unforced": (
        "--block-size 16 --max-total-tokens 224 --max-batch-total-tokens 240 "
        "--max-batch-prefill-tokens 16 --disable-prefix-caching --disable-forced-tokens "
        "--speculate 1",
        0.0,
    ),
}
"""Flags of the server, and the seconds between two requests' starts."""


@pytest.fixture(scope="module")
def references(model_path: Path) -> list[list[int]]:
    """What transformers generates for each prompt, alone, in float32."""
    model: Any = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    tokenizer: Any = AutoTokenizer.from_pretrained(model_path, padding_side="left")
    return [
        guess if _is_certain(model, prompt, guess) else _generated(model, prompt)[0]
        for prompt, guess in _guesses(model, tokenizer)
    ]


def _guesses(model: Any, tokenizer: Any) -> list[tuple[torch.Tensor, list[int]]]:  # noqa: ANN401
    """Each prompt's ids, and what follows it in a batch: that takes a fifth of the time."""
    batch = tokenizer(PROMPTS, return_tensors="pt", padding=True)
    prompts = [
        ids[mask.bool()].unsqueeze(0)
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]
    return list(zip(prompts, _generated(model, **batch), strict=True))


def _generated(model: Any, input_ids: torch.Tensor, **inputs: Any) -> list[list[int]]:  # noqa: ANN401
    """What transformers generates, each up to its end."""
    outputs = model.generate(input_ids, **inputs, max_new_tokens=NEW_TOKENS, do_sample=False)
    end = model.generation_config.eos_token_id
    texts = [ids[input_ids.shape[1] :].tolist() for ids in outputs]
    return [ids[: ids.index(end) + 1] if end in ids else ids for ids in texts]


def _is_certain(model: Any, prompt: torch.Tensor, guess: list[int]) -> bool:  # noqa: ANN401
    """Whether the prompt alone makes each token the most probable, beyond what sums round."""
    ids = torch.cat([prompt, torch.tensor([guess])], dim=1)
    with torch.inference_mode():
        logits = model(ids[:, :-1]).logits[0, prompt.shape[1] - 1 :]
    best, second = logits.topk(2).values.unbind(-1)
    return logits.argmax(-1).tolist() == guess and bool((best - second > CERTAIN).all())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.anyio
async def test_equals_transformers_generate(
    case: str, references: list[list[int]], model_path: Path, tmp_path: Path
) -> None:
    flags, delay = CASES[case]
    with serve(
        tmp_path / "log", "--model-id", str(model_path), "--dtype", "float32", *flags.split()
    ) as server:
        async with client(server) as http:
            # The second time from the prefix cache, where there is one.
            for _ in range(1 if "--disable-prefix-caching" in flags else 2):
                found = await _all_at_once(http, delay)
                different = [i for i, ids in enumerate(found) if ids != references[i]]
                assert different == []
        assert (server.metric("tgi_batch_preemptions") > 0) == case.startswith("preempted")
        assert (server.metric("tgi_accepted_tokens") > 0) == ("--speculate 0" not in flags)
        assert (server.metric("tgi_forced_tokens") > 0) == (case != "preempted_unforced")
        assert (server.metric("tgi_prefix_cache_hit_tokens") > 0) == (
            "--disable-prefix-caching" not in flags
        )


async def _all_at_once(http: httpx.AsyncClient, delay: float) -> list[list[int]]:
    """Every prompt, beside constrained and sampled neighbours; each starts `delay` later."""
    found: dict[int, list[int]] = {}
    neighbours: list[Json] = [
        {"grammar": {"type": "json", "value": SCHEMA}, "max_new_tokens": 60},
        {"do_sample": True, "temperature": 1.4, "max_new_tokens": 30},
        {"grammar": {"type": "regex", "value": "[a-z]{3,8}-[0-9]{2}"}, "do_sample": True},
    ]

    async def ask(i: int) -> None:
        await anyio.sleep(delay * i)
        found[i] = token_ids(await generate(http, PROMPTS[i], max_new_tokens=NEW_TOKENS))

    async with anyio.create_task_group() as tasks:
        for i in range(len(PROMPTS)):
            tasks.start_soon(ask, i)
            if i % 4 == 0:
                neighbour = neighbours[i // 4 % 3]
                tasks.start_soon(partial(generate, http, PROMPTS[-i], **neighbour))
    return [found[i] for i in range(len(PROMPTS))]
