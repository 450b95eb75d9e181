"""The prompt side of a sampling request: logprobs of its tokens, top-k, chosen ids, draws.

Many prompts are scored together: their positions are laid end to end and unembedded a chunk at
a time, so that the ``[tokens, vocabulary]`` logits never exist whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from tinkerlab.rehearsal.engine import token_choice
from tinkerlab.rehearsal.engine.token_choice import MISSING_LOGPROB
from tinkerlab.rehearsal.engine.types import SamplingRequest, SamplingResult, TopK

_CHUNK_BYTES = 96 * 2**20  # of float32 logits that exist at one time
_ALTERNATIVES = 1_000_000  # a place for row_generator that no sample index takes


class PromptScores:
    """Collects what one request asks about its prompt, chunk after chunk."""

    def __init__(self, request: SamplingRequest) -> None:
        self._request = request
        length = len(request.tokens)
        self._length = length
        self._prompt = torch.tensor(request.tokens)
        last_n = request.prompt_logprobs_last_n
        # Position p is scored by the hidden state of position p - 1; position 0 has none.
        self._first = 1 if last_n is None else max(1, length - last_n)
        k = request.topk_prompt_logprobs
        self._logprobs = (
            np.full(length, np.nan, dtype=np.float32) if request.prompt_logprobs else None
        )
        self._topk = (
            TopK(
                np.zeros((length, k), dtype=np.int32),
                np.full((length, k), MISSING_LOGPROB, dtype=np.float32),
            )
            if k
            else None
        )
        self._targets = request.target_prompt_logprobs
        self._target_logprobs = (
            None if self._targets is None else np.zeros(self._targets.shape, dtype=np.float32)
        )
        draws = request.prompt_alt_tokens_k
        self._alt = (
            (
                np.zeros((length - 1, draws), dtype=np.int32),
                np.zeros((length - 1, draws), dtype=np.float32),
            )
            if draws
            else None
        )
        self._uniforms = (
            torch.from_numpy(
                token_choice.row_generator(request.seed, _ALTERNATIVES).random((length - 1, draws))
            )
            if draws
            else None
        )

    @property
    def start(self) -> int:
        """The first position whose hidden state is needed; ``length - 1`` if none is."""
        wanted = self._length
        if self._logprobs is not None or self._topk is not None:
            wanted = self._first
        if self._alt is not None:
            wanted = min(wanted, 1)
        if self._targets is not None:
            rows = np.flatnonzero((self._targets >= 0).any(axis=1))
            wanted = min(wanted, int(rows[0]) + 1 if len(rows) else self._length)
        return wanted - 1

    def take(self, start: int, logits: Tensor, normaliser: Tensor) -> None:
        """Use the logits of the hidden states ``start``, ``start + 1``, ... of the prompt.

        Args:
            logits: float32 ``[n, vocabulary]``.
            normaliser: their logsumexp, float32 ``[n, 1]``.
        """
        stop = start + logits.shape[0]
        scored = slice(max(start, self._first - 1), stop)
        if scored.start < stop:
            part = slice(scored.start - start, None)
            target = slice(scored.start + 1, stop + 1)
            if self._logprobs is not None:
                chosen = logits[part].gather(-1, self._prompt[target].unsqueeze(-1))
                self._logprobs[target] = (chosen - normaliser[part]).squeeze(-1).numpy()
            if self._topk is not None:
                best = logits[part].topk(self._topk.token_ids.shape[1], dim=-1)
                self._topk.token_ids[target] = best.indices.numpy()
                self._topk.logprobs[target] = (best.values - normaliser[part]).numpy()
        if self._targets is not None:
            assert self._target_logprobs is not None
            asked = torch.from_numpy(self._targets[start:stop])
            values = logits.gather(-1, asked.clamp(min=0)) - normaliser
            self._target_logprobs[start:stop] = values.masked_fill_(asked < 0, 0.0).numpy()
        if self._alt is not None:
            assert self._uniforms is not None
            tokens, logprobs = token_choice.draw_many(
                logits, self._uniforms[start:stop], self._request.temperature
            )
            self._alt[0][start:stop] = tokens.numpy()
            self._alt[1][start:stop] = logprobs.numpy()

    def finite(self) -> bool:
        """False if the model gave NaN for a scored token."""
        for array in (self._target_logprobs, self._alt[1] if self._alt else None):
            if array is not None and not np.isfinite(array).all():
                return False
        if self._logprobs is not None:
            return bool(np.isfinite(self._logprobs[self._first :]).all())
        return True

    def result(self) -> SamplingResult:
        """The prompt's part of the result; the sequences are still to be filled in."""
        return SamplingResult(
            prompt_logprobs=self._logprobs,
            topk_prompt_logprobs=self._topk,
            target_prompt_logprobs=self._target_logprobs,
            alt_tokens=self._alt,
        )


def score(
    unembed: Callable[[Tensor], Tensor],
    parts: Sequence[tuple[PromptScores, int, Tensor]],
    vocabulary: int,
) -> None:
    """Score hidden states of several prompts that use the same adapter.

    Args:
        unembed: hidden states ``[n, hidden]`` to logits ``[n, vocabulary]``.
        parts: (scores, first position, hidden states ``[n, hidden]`` from there on).
        vocabulary: size that bounds how many positions make a chunk.
    """
    if not parts:
        return
    everything = parts[0][2] if len(parts) == 1 else torch.cat([part for _, _, part in parts])
    chunk = max(16, _CHUNK_BYTES // (4 * vocabulary))
    place = [0]
    for _, _, hidden in parts:
        place.append(place[-1] + hidden.shape[0])
    for begin in range(0, place[-1], chunk):
        end = min(begin + chunk, place[-1])
        logits = unembed(everything[begin:end]).float()
        normaliser = logits.logsumexp(dim=-1, keepdim=True)
        for index, (scores, position, _) in enumerate(parts):
            low, high = max(begin, place[index]), min(end, place[index + 1])
            if low < high:
                rows = slice(low - begin, high - begin)
                scores.take(position + low - place[index], logits[rows], normaliser[rows])
