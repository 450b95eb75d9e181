"""The sampler's prompt passes: prompts of similar length together, long ones in chunks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tinkerlab.rehearsal.engine import prompt_scoring
from tinkerlab.rehearsal.engine.base import BaseModel
from tinkerlab.rehearsal.engine.cached_attention import CachedPass, cached_pass
from tinkerlab.rehearsal.engine.kv_cache import CapturedPrompts, GrowingPrompt, PromptKV
from tinkerlab.rehearsal.engine.lora import use_adapter, use_adapters
from tinkerlab.rehearsal.engine.sampling_jobs import Prefill, adapter_groups

# Padding that a pass of its own would save costs less than the pass up to this many tokens:
# reading SmolLM2's weights once takes about as long as computing 20 tokens.
_SMALL_WASTE = 64
_WASTE_SHARE = 0.15


def similar_lengths(works: Sequence[Prefill], *, mix: bool) -> list[list[Prefill]]:
    """Split prompts into passes without much padding; adapters stand together in each.

    Args:
        mix: whether one pass may hold several adapters.
    """
    groups: list[list[Prefill]] = []
    key = (lambda w: len(w.tokens)) if mix else (lambda w: (id(w.job.adapter), len(w.tokens)))
    for work in sorted(works, key=key):
        if groups and _fits(groups[-1], work, mix):
            groups[-1].append(work)
        else:
            groups.append([work])
    return [sorted(group, key=lambda w: id(w.job.adapter)) for group in groups]


def _fits(group: list[Prefill], work: Prefill, mix: bool) -> bool:
    if not mix and group[0].job.adapter is not work.job.adapter:
        return False
    used = sum(len(other.tokens) for other in group)
    waste = len(work.tokens) * len(group) - used
    return waste <= max(_SMALL_WASTE, _WASTE_SHARE * used)


def run_prompts(base: BaseModel, works: Sequence[Prefill]) -> tuple[Tensor, list[PromptKV | None]]:
    """Run fresh prompts in one pass, and score them.

    Returns:
        the logits behind each prompt's last token, float32 ``[prompts, vocabulary]``, and the
        prompts' keys and values (None for a prompt after which nothing is decoded).
    """
    lengths = torch.tensor([len(work.tokens) for work in works])
    tokens = torch.zeros(len(works), int(lengths.max()), dtype=torch.int64)
    for row, work in enumerate(works):
        tokens[row, : len(work.tokens)] = torch.tensor(work.tokens)
    captured = CapturedPrompts() if any(work.generates for work in works) else None
    groups = adapter_groups([work.job for work in works])
    with use_adapters(groups):
        hidden = base.hidden_states(
            tokens, past_key_values=captured, use_cache=captured is not None
        )
        last = base.logits(hidden[torch.arange(len(works)), lengths - 1]).float()
    row = 0
    for count, weights in groups:
        parts = []
        for index in range(row, row + count):
            scores = works[index].scores
            if scores is not None and scores.start < len(works[index].tokens) - 1:
                begin, end = scores.start, len(works[index].tokens) - 1
                parts.append((scores, begin, hidden[index, begin:end]))
        with use_adapter(weights):
            prompt_scoring.score(base.logits, parts, base.vocab_size)
        row += count
    return last, [
        captured.row(index, len(work.tokens)) if captured and work.generates else None
        for index, work in enumerate(works)
    ]


class LongPrompt:
    """A prompt that is run a chunk at a time, so that other rows needn't wait for all of it."""

    def __init__(self, work: Prefill) -> None:
        self.work = work
        self._cache = GrowingPrompt(len(work.tokens))

    @property
    def done(self) -> int:
        """Tokens that have been run."""
        return self._cache.done

    def advance(self, base: BaseModel, chunk: int) -> tuple[Tensor, PromptKV | None] | None:
        """Run the next ``chunk`` tokens and score them.

        Returns:
            None while there is more to run; then the last token's logits ``[1, vocabulary]``
            and the keys and values.
        """
        work, start = self.work, self._cache.done
        end = min(start + chunk, len(work.tokens))
        positions = torch.arange(start, end).unsqueeze(0)
        description = CachedPass(positions, end)
        with use_adapter(work.job.weights), cached_pass(description):
            hidden = base.hidden_states(
                torch.tensor([work.tokens[start:end]]),
                position_ids=positions,
                attention_mask=description.placeholder,
                past_key_values=self._cache,
                use_cache=True,
            )[0]
            scores = work.scores
            if scores is not None:
                first, last = max(start, scores.start), min(end, len(work.tokens) - 1)
                if first < last:
                    part = (scores, first, hidden[first - start : last - start])
                    prompt_scoring.score(base.logits, [part], base.vocab_size)
            self._cache.done = end
            if end < len(work.tokens):
                return None
            logits = base.logits(hidden[-1:]).float()
        return logits, self._cache.finish() if work.generates else None
