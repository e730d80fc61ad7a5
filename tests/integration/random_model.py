"""A tiny model with random weights: it answers at once, and whatever it likes."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase


def save_random_model(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """A Llama with this tokenizer, as transformers would save it.

    Its heads are wide enough for the kernels to compute the whole decoder.
    """
    tokenizer.save_pretrained(folder)
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
