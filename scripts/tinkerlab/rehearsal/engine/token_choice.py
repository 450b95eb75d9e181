"""From logits to tokens: temperature, top-k, top-p, and the logprobs that go with a choice.

Drawing is by inverse distribution function: one uniform number for each row and step, from a
generator that belongs to the row (:func:`row_generator`). So a seeded request draws the same
numbers whatever runs beside it; its tokens differ only if a float32 rounding difference of the
batched logits (some 1e-6) moves a boundary across the number drawn.

Which logprob is returned. At temperature T it is that of ``softmax(logits / T)``, the
distribution sampled from, before top-k and top-p cut it; at temperature 0 (greedy) that of
``softmax(logits)``. The hosted service isn't documented here. A maintainer reports, from its
backend code, that it returns "the same logprobs used for sampling, even when temperature scaling
is applied" (tinker-cookbook pull request 86, November 2025), and the cookbook warns that
temperatures other than 1 don't go with its KL penalty, which fits; a user reports raw logprobs
(tinker-feedback issue 148, September 2026). Prompt logprobs are always those of
``softmax(logits)``: no temperature belongs to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

MISSING_LOGPROB = -99999.0  # an empty cell of a top-k table (tinker/types/topk_logprobs.py)

# top-p rows are first tried on this many best tokens; only a flatter distribution is sorted.
_NUCLEUS_TRY = 1024
_ALMOST_ONE = 1.0 - 2.0**-52


@dataclass(frozen=True)
class ChoiceRule:
    """How a row chooses its tokens: temperature 0 is greedy, top_k -1 and top_p 1 cut nothing."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1


@dataclass
class Choices:
    """The outcome for ``n`` rows.

    Attributes:
        tokens: int64 ``[n]``.
        logprobs: float32 ``[n]``; NaN where the row's logits aren't finite (its token is void).
        top_ids, top_logprobs: the ``k`` most likely tokens, ``[n, k]``; None for k = 0.
    """

    tokens: Tensor
    logprobs: Tensor
    top_ids: Tensor | None = None
    top_logprobs: Tensor | None = None


def row_generator(seed: int | None, *place: int) -> np.random.Generator:
    """The random numbers of one row: the same for the same seed and place (sample index, ...)."""
    if seed is None:
        return np.random.Generator(np.random.Philox())
    # The service folds seeds into [0, 2**63 - 1) too (tinker_public_pb2.pyi, SamplingParams).
    entropy = [seed % (2**63 - 1), *place]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy)))


class Chooser:
    """Chooses one token for each of ``n`` rows; made once for as long as the rows stay."""

    def __init__(self, rules: Sequence[ChoiceRule]) -> None:
        temperatures = [rule.temperature for rule in rules]
        self._greedy = _indices([t == 0 for t in temperatures])
        self._filtered = _indices(
            [r.temperature > 0 and (r.top_k > 0 or r.top_p < 1) for r in rules]
        )
        self._top_k = torch.tensor([rules[i].top_k for i in self._filtered.tolist()])
        self._top_p = torch.tensor(
            [rules[i].top_p for i in self._filtered.tolist()], dtype=torch.float64
        )
        self._all_greedy = len(self._greedy) == len(rules)
        self._temperatures = (
            None
            if all(t in (0.0, 1.0) for t in temperatures)
            else torch.tensor([t or 1.0 for t in temperatures]).unsqueeze(-1)
        )

    def choose(self, logits: Tensor, uniforms: Sequence[float], top: int = 0) -> Choices:
        """Choose from ``logits`` float32 ``[n, vocabulary]``, which are overwritten.

        Args:
            uniforms: one number in [0, 1) for each row; greedy rows don't use theirs.
            top: how many most likely tokens to list beside the choice.
        """
        if self._temperatures is not None:
            logits.div_(self._temperatures)
        largest = logits.amax(dim=-1, keepdim=True)
        best = logits.topk(top, dim=-1) if top else None
        tokens = logits.argmax(dim=-1) if len(self._greedy) else None
        weights = logits.sub_(largest).exp_()
        if self._all_greedy:
            assert tokens is not None
            total = weights.sum(dim=-1, dtype=torch.float64)
        else:
            drawn, total = _draw(weights, torch.tensor(uniforms, dtype=torch.float64))
            if tokens is None:
                tokens = drawn
            else:
                drawn[self._greedy] = tokens[self._greedy]
                tokens = drawn
            if len(self._filtered):
                tokens[self._filtered] = self._draw_filtered(weights, total, uniforms)
        log_total = total.log().unsqueeze(-1)
        chosen = weights.gather(-1, tokens.unsqueeze(-1)).double().log()
        logprobs = (chosen - log_total).float().squeeze(-1)
        if best is None:
            return Choices(tokens, logprobs)
        top_logprobs = (best.values.double() - largest.double() - log_total).float()
        return Choices(tokens, logprobs, best.indices, top_logprobs)

    def _draw_filtered(self, weights: Tensor, total: Tensor, uniforms: Sequence[float]) -> Tensor:
        """Draw for the rows with top-k or top-p: top-k first, then top-p of what is left."""
        rows = self._filtered
        part = weights[rows]
        vocabulary = part.shape[-1]
        limit = torch.where(self._top_k > 0, self._top_k, vocabulary).clamp(max=vocabulary)
        unlimited = limit == vocabulary
        count = min(vocabulary, int(limit.max()))
        if bool(unlimited.any()):
            limited = limit[~unlimited]
            least = int(limited.max()) if len(limited) else 0
            count = min(vocabulary, max(_NUCLEUS_TRY, least))
        values, ids = part.topk(count, dim=-1)
        if count < vocabulary:
            mass = values[unlimited].sum(dim=-1, dtype=torch.float64)
            if bool((mass < self._top_p[unlimited] * total[rows][unlimited]).any()):
                values, ids = part.sort(dim=-1, descending=True)
        values = values.double()
        values[torch.arange(values.shape[-1]) >= limit.unsqueeze(-1)] = 0.0
        kept_mass = torch.where(unlimited, total[rows], values.sum(dim=-1))
        cumulative = values.cumsum(dim=-1)
        # A token stays while the mass before it hasn't reached top_p; the first always stays.
        before = cumulative - values
        values = torch.where(before < (self._top_p * kept_mass).unsqueeze(-1), values, 0.0)
        values[:, 0].clamp_(min=torch.finfo(torch.float64).tiny)
        numbers = torch.tensor([uniforms[i] for i in rows.tolist()], dtype=torch.float64)
        return ids.gather(-1, _invert(values.cumsum(dim=-1), numbers)).squeeze(-1)


def draw_many(logits: Tensor, uniforms: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Draw ``k`` tokens independently from each row of ``logits``, for alternative tokens.

    Args:
        logits: float32 ``[n, vocabulary]``; not changed.
        uniforms: float64 ``[n, k]`` in [0, 1).
        temperature: of the draw; 0 gives the most likely token k times.

    Returns:
        int64 tokens ``[n, k]`` and their logprobs under ``softmax(logits)``, float32 ``[n, k]``
        (tinker/types/prompt_alt_tokens.py: "the model's logprob").
    """
    if temperature == 0:
        tokens = logits.argmax(dim=-1, keepdim=True).expand(-1, uniforms.shape[-1])
    else:
        scaled = logits.double().div_(temperature)
        weights = scaled.sub_(scaled.amax(dim=-1, keepdim=True)).exp_()
        tokens = _invert(weights.cumsum(dim=-1), uniforms)
    return tokens, logits.gather(-1, tokens) - logits.logsumexp(dim=-1, keepdim=True)


def _indices(flags: list[bool]) -> Tensor:
    return torch.tensor([i for i, flag in enumerate(flags) if flag], dtype=torch.int64)


def _draw(weights: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Draw one index for each row in proportion to ``weights`` float32 ``[n, vocabulary]``.

    In two levels, blocks and then inside one block, so that the whole vocabulary is read once
    and never written: float64 cumulative sums of it all would take twice the time.

    Returns:
        int64 ``[n]`` and the rows' float64 sums.
    """
    rows, vocabulary = weights.shape
    block = _block_size(vocabulary)
    blocks = weights.view(rows, vocabulary // block, block)
    cumulative = blocks.sum(dim=-1).double().cumsum(dim=-1)
    total = cumulative[:, -1]
    place = _invert(cumulative, uniforms.unsqueeze(-1)).squeeze(-1)
    before = torch.where(
        place > 0, cumulative.gather(-1, (place - 1).clamp(min=0).unsqueeze(-1)).squeeze(-1), 0.0
    )
    inside = blocks[torch.arange(rows), place].double().cumsum(dim=-1)
    rest = (uniforms * total - before).clamp(min=0.0)
    rest = torch.minimum(rest, inside[:, -1] * _ALMOST_ONE).unsqueeze(-1)
    within = torch.searchsorted(inside, rest, right=True).clamp(max=block - 1).squeeze(-1)
    return place * block + within, total


def _invert(cumulative: Tensor, uniforms: Tensor) -> Tensor:
    """First index whose cumulative weight exceeds ``uniform * total``; never one of weight 0.

    Args:
        cumulative: float64 ``[n, m]``.
        uniforms: float64 ``[n]`` or ``[n, k]``.

    Returns:
        int64 ``[n, 1]`` or ``[n, k]``.
    """
    if uniforms.dim() == 1:
        uniforms = uniforms.unsqueeze(-1)
    total = cumulative[:, -1:]
    targets = torch.minimum(uniforms * total, total * _ALMOST_ONE)
    found = torch.searchsorted(cumulative, targets.contiguous(), right=True)
    return found.clamp(max=cumulative.shape[-1] - 1)


def _block_size(vocabulary: int) -> int:
    """The largest power of two up to 256 that divides the vocabulary, or all of it."""
    block = 256
    while block > 8 and vocabulary % block:
        block //= 2
    return block if vocabulary % block == 0 else vocabulary
