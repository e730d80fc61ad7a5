"""The same decode steps by transformers: its own modules, F.linear, SDPA, one padded batch."""

from __future__ import annotations

import time

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from benchmarks.steps import WARM_UP, StepTimes


class TransformersSteps:
    """Measures transformers' forward and an argmax: nothing is scheduled, no text is made."""

    def __init__(self, model_path: str, dtype: str) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(
            model_path, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        )
        torch.nn.Module.train(self._model, False)

    def fits(self, rows: int, context: int) -> bool:
        """Whether so much is worth the memory: each step copies all keys and values."""
        return rows * context <= 65536

    @torch.inference_mode()
    def decode(self, rows: int, context: int, steps: int) -> StepTimes:
        """Steps in which each of `rows` sequences of `context` tokens gets one more."""
        config = self._model.config
        head_dim = getattr(config, "head_dim", None)
        head_dim = head_dim or config.hidden_size // config.num_attention_heads
        shape = (rows, config.num_key_value_heads, context, head_dim)
        cache = DynamicCache(config=config)
        for layer in range(config.num_hidden_layers):
            keys, values = (torch.full(shape, 0.01, dtype=self._model.dtype) for _ in range(2))
            cache.update(keys, values, layer)
        ids = torch.ones(rows, 1, dtype=torch.int64)
        times = StepTimes()
        for step in range(WARM_UP + steps):
            start = time.perf_counter()
            logits = self._model(input_ids=ids, past_key_values=cache, use_cache=True).logits
            ids = logits[:, -1:].argmax(-1)
            if step >= WARM_UP:
                times.whole.append(time.perf_counter() - start)
        return times
