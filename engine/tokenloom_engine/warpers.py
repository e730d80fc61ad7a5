"""Temperature, min-p, top-k, top-p and typical-p: what narrows the distribution before the draw.

Each takes scores [rows, V] and one setting a row, and returns scores in which what falls away
is -inf. A row whose setting is off keeps its scores. Settings are on the CPU, wherever the scores
are: to ask whether any is set must not wait for a GPU, and nor must sending them there.
"""

from __future__ import annotations

import torch

from tokenloom_engine.batch import to_device

COLDEST = 1e-30
"""Whatever is colder draws the same, but would divide scores out of float32's range."""
NUCLEUS_GUESS = 1024
"""Most nuclei are smaller; only rows that need more are sorted whole."""


def apply_temperature(scores: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Divide by the temperature, [rows]."""
    return scores / _beside(temperature.clamp(min=COLDEST), scores).unsqueeze(1)


def apply_min_p(scores: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """Keep what has at least this share of the best token's probability; 0 is off. [rows].

    Min-p sampling: Nguyen et al., Turning Up the Heat, 2024.
    """
    if bool((min_p <= 0).all()):
        return scores
    # log(0) is -inf, below everything
    least = scores.amax(dim=1, keepdim=True) + _beside(min_p.log(), scores).unsqueeze(1)
    return scores.masked_fill(scores < least, -torch.inf)


def apply_top_k(scores: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Keep the k best of each row, and what ties with the last of them; 0 is off. int64 [rows]."""
    most = min(int(top_k.max()), scores.shape[1])
    if most == 0:
        return scores
    top_k = _beside(top_k, scores)
    best = scores.topk(most, dim=1).values
    kth = best.gather(1, (top_k.clamp(1, most) - 1).unsqueeze(1))
    return scores.masked_fill((scores < kth) & (top_k > 0).unsqueeze(1), -torch.inf)


def apply_top_p(scores: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Keep the fewest best tokens that together have probability p; 1 is off. [rows].

    Nucleus sampling: Holtzman et al., The Curious Case of Neural Text Degeneration, 2020.
    """
    if bool((top_p >= 1).all()):
        return scores
    top_p = _beside(top_p, scores)
    total = scores.logsumexp(dim=1, keepdim=True)
    best = scores.topk(min(NUCLEUS_GUESS, scores.shape[1]), dim=1).values
    mass = (best - total).exp().cumsum(dim=1)
    last = _last_kept(best, mass, top_p)
    short = (mass[:, -1] < top_p) & (top_p < 1)
    if bool(short.any()):
        whole = scores[short].sort(dim=1, descending=True).values
        mass = (whole - total[short]).exp().cumsum(dim=1)
        last[short] = _last_kept(whole, mass, top_p[short])
    return scores.masked_fill((scores < last) & (top_p < 1).unsqueeze(1), -torch.inf)


def _last_kept(best: torch.Tensor, mass: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The nucleus' lowest score [rows, 1]: `best` is sorted, `mass` its probability summed up."""
    kept_before = (mass < top_p.unsqueeze(1)).sum(dim=1, keepdim=True)
    return best.gather(1, kept_before.clamp(max=best.shape[1] - 1))


def apply_typical_p(scores: torch.Tensor, typical_p: torch.Tensor) -> torch.Tensor:
    """Keep the tokens of most typical surprise that together have probability p; 1 is off.

    Locally typical sampling: Meister et al., 2022. Typical is a surprise near the entropy.
    """
    rows = typical_p < 1
    if not bool(rows.any()):
        return scores
    rows, typical_p = _beside(rows, scores), _beside(typical_p, scores)
    logprobs = scores[rows].log_softmax(dim=1)
    probs = logprobs.exp()
    entropy = -(probs * logprobs.clamp(min=-1e30)).sum(dim=1, keepdim=True)
    distance, order = (-logprobs - entropy).abs().sort(dim=1)
    mass = probs.gather(1, order).cumsum(dim=1)
    kept_before = (mass < typical_p[rows].unsqueeze(1)).sum(dim=1, keepdim=True)
    last = distance.gather(1, kept_before.clamp(max=distance.shape[1] - 1))
    drop = torch.zeros_like(probs, dtype=torch.bool).scatter(1, order, distance > last)
    result = scores.clone()
    result[rows] = scores[rows].masked_fill(drop, -torch.inf)
    return result


def _beside(settings: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    return to_device(settings.numpy(), scores.device)
