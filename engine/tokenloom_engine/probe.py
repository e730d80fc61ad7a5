"""Whether our attention serves a model faithfully: asked of the model itself, at load.

Some architectures never call the attention function, or keep from it what they need, and give
wrong answers without an error. So the layers are counted, and logits over a small packed batch
are compared with those of the model's own attention.
"""

from __future__ import annotations

import torch

from tokenloom_engine.attention import create_attention
from tokenloom_engine.attention.base import AttentionOptions, LayerSpec
from tokenloom_engine.attention.varlen import PAGE
from tokenloom_engine.batch import Batch, Row
from tokenloom_engine.errors import LoadError, UnfaithfulError
from tokenloom_engine.kernels.library import Kernels
from tokenloom_engine.messages import SamplingParams, StoppingParams, Submit
from tokenloom_engine.model import Model
from tokenloom_engine.sequence import Sequence
from tokenloom_engine.vocabulary import Vocabulary

PROBE_LENGTHS = (40, 9)
FIRST_CHUNKS = (17, 0)
"""How many tokens of each sequence the first step computes; the second one computes the rest."""
PROBE_BLOCK_SIZE = 16
TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.1}
"""Largest relative error of a position's logits; a wrong attention is off by about 1."""
QUANTIZED_TOLERANCE = 0.5
"""Weights in bytes are another model; what is wrong beyond that is off by about 1."""
QUANTILE = 0.75
"""So many positions must be right. The others may be further off: a rounding can make a router pick
other experts. What attention does wrong, a window included, shows at more positions than these."""


def probe_layers(model: Model) -> list[LayerSpec]:
    """Run once and note each attention layer. Raises LoadError if there are not all of them."""
    layers: list[LayerSpec] = []

    def note(
        layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: AttentionOptions
    ) -> torch.Tensor:
        layers.append(
            LayerSpec(
                layer,
                k.shape[1],
                k.shape[-1],
                v.shape[-1],
                options.sliding_window,
                options.softcap,
                options.sinks is not None,
            )
        )
        return q.new_zeros(q.shape[0], q.shape[1], v.shape[-1])

    model.attend = note
    ids = _ids(model, 4)
    position_ids = torch.arange(4, device=model.device).unsqueeze(0)
    try:
        model.forward(ids, position_ids, position_ids[0])
    except Exception as error:  # whatever an unsuited architecture raises
        raise _refusal(model, str(error) or type(error).__name__) from error
    expected = model.config.num_hidden_layers
    if sorted(spec.index for spec in layers) != list(range(expected)):
        raise _refusal(
            model, f"only {len(layers)} calls of the attention function for {expected} layers"
        )
    _check_sliding_windows(model, layers)
    _check_long_texts(model)
    return layers


def reference_logits(model: Model) -> list[torch.Tensor]:
    """The probe's logits by the model's own modules and attention, one sequence at a time."""
    return [
        model.forward_eager(_ids(model, length), is_long=is_long).float()
        for length, is_long in _probe_texts(model)
    ]


def probe_logits(
    model: Model,
    layers: list[LayerSpec],
    attention: str,
    vocabulary: Vocabulary,
    references: list[torch.Tensor],
    kernels: Kernels | None,
    *,
    is_quantized: bool,
) -> None:
    """Compare packed logits with `references`. Raises LoadError if they differ."""
    block_size = PAGE if attention == "varlen" else PROBE_BLOCK_SIZE
    texts = _probe_texts(model)
    num_blocks = 2 * len(texts) * (-(-max(PROBE_LENGTHS) // block_size))
    backend = create_attention(
        attention, layers, num_blocks, block_size, model.dtype, model.device, kernels
    )
    model.bind(backend)
    sequences = [_sequence(model, *text, vocabulary) for text in texts]
    blocks = iter(reversed(range(num_blocks)))
    for sequence in sequences:
        sequence.num_scored = 1  # logits wanted at every position
        sequence.block_table = [next(blocks) for _ in range(num_blocks // len(sequences))]

    def compute(counts: list[int]) -> list[torch.Tensor]:
        rows = []
        for sequence, count in zip(sequences, counts, strict=True):
            rows.append(Row(sequence, sequence.num_computed, count, is_prefill=True))
            sequence.num_computed += count
        rows = [row for row in rows if row.count]
        batch = Batch.pack(rows, block_size, model.device, twin=not model.is_batch_invariant)
        backend.prepare(batch)
        logits = model.forward(
            batch.input_ids, batch.position_ids, batch.logit_positions, batch.is_long
        )
        parts = iter(torch.split(logits, [row.num_logits for row in rows]))
        return [next(parts) if count else logits[:0] for count in counts]

    tolerance = QUANTIZED_TOLERANCE if is_quantized else TOLERANCE[model.dtype]
    firsts = [
        min(FIRST_CHUNKS[i % len(FIRST_CHUNKS)], length) for i, (length, _) in enumerate(texts)
    ]
    chunks = firsts, [length - first for (length, _), first in zip(texts, firsts, strict=True)]
    ours = [torch.cat(parts) for parts in zip(*map(compute, chunks), strict=True)]
    for own, reference in zip(ours, references, strict=True):
        _compare(model, own, reference, tolerance)
    if model.rope_ranges is None:
        return
    # Those that are long find their first chunks in the cache, the others outgrow the limit.
    num_short = len(sequences) // 2
    for sequence, first, (_, is_long) in zip(sequences, firsts, texts, strict=True):
        sequence.num_computed = first if is_long else 0
        sequence.is_long = True
    again = compute([len(s.ids) - s.num_computed for s in sequences])
    long_references = references[num_short:]
    for i, own in enumerate(again):
        reference = long_references[i % num_short]
        _compare(model, own, reference[-len(own) :], tolerance)


def _compare(model: Model, own: torch.Tensor, reference: torch.Tensor, tolerance: float) -> None:
    """Raise UnfaithfulError if logits [positions, vocab_size] differ."""
    errors = (own.float() - reference).norm(dim=-1) / reference.norm(dim=-1)
    error = errors.quantile(QUANTILE)
    if not error <= tolerance:
        raise UnfaithfulError(
            _reason(
                model, f"packed logits differ from the model's own (relative error {error:.2g})"
            )
        )


def _probe_texts(model: Model) -> list[tuple[int, bool]]:
    """Length of each sequence, and whether it is computed as a long text: the short ones first.

    Where the rotary embedding has a limit, each is there in both ways.
    """
    ranges = model.rope_ranges
    if ranges is None:
        return [(length, False) for length in PROBE_LENGTHS]
    lengths = [min(length, ranges.limit) for length in PROBE_LENGTHS]
    return [(length, is_long) for is_long in (False, True) for length in lengths]


def _check_sliding_windows(model: Model, layers: list[LayerSpec]) -> None:
    """A window that the model has but does not hand over would be wrong only in long texts."""
    window = getattr(model.config, "sliding_window", None)
    kinds = getattr(model.config, "layer_types", None) or []
    for spec in layers:
        slides = bool(kinds) and kinds[spec.index] == "sliding_attention" and window is not None
        if slides and spec.sliding_window != window:
            raise _refusal(
                model, f"layer {spec.index} has a sliding window that it does not hand over"
            )


def _check_long_texts(model: Model) -> None:
    """Refuse what attention would do only in texts longer than the probe's, by the whole call."""
    config, longest = model.config, model.context_length or 0
    kinds = getattr(config, "layer_types", None) or []
    chunk = getattr(config, "attention_chunk_size", None)
    if "chunked_attention" in kinds and chunk and chunk < longest:
        raise _refusal(model, f"its attention is in chunks of {chunk} tokens, by a mask of its own")
    scale = getattr(config, "floor_scale", None)
    if getattr(config, "attn_temperature_tuning", False) and scale and scale <= longest:
        raise _refusal(
            model, f"its attention's temperature changes every {scale} tokens of a whole call"
        )


def _sequence(model: Model, length: int, is_long: bool, vocabulary: Vocabulary) -> Sequence:
    ids = _ids(model, length)[0].tolist()
    submit = Submit(
        id=0,
        prompt_ids=ids,
        sampling=SamplingParams(),
        stopping=StoppingParams(max_new_tokens=1),
    )
    sequence = Sequence(submit, vocabulary)
    sequence.is_long = is_long
    return sequence


def _ids(model: Model, length: int) -> torch.Tensor:
    """Some token ids [1, length], the same each time."""
    width = int(model.config.vocab_size)
    ids = torch.arange(1, length + 1) * 7919 % (width - 1) + 1
    return ids.unsqueeze(0).to(model.device)


def _refusal(model: Model, reason: str) -> LoadError:
    return LoadError(_reason(model, reason))


def _reason(model: Model, reason: str) -> str:
    name = model.config.model_type
    reason = reason.strip().splitlines()[0]
    return f"the architecture {name!r} cannot be served faithfully: {reason}"
