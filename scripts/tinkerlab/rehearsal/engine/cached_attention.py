"""Attention of new tokens over rows of different length that stand in one key/value buffer.

transformers' own attention would do it too, at a price: its 2-D masks count a sliding window
from one common position, and on a CPU it first copies every key and value once for each query
head that shares it. Here the query heads of a group become more queries of their one key head,
so that nothing is copied: about a tenth of the time at 64 rows of SmolLM2-135M.

:func:`install` registers the attention with transformers under its own name. It works only
inside :func:`cached_pass`, in the thread that entered it; everywhere else (training, prompts)
the model computes exactly what it did before.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_PREFIX = "rehearsal_over_"


class CachedPass:
    """Where the queries of one forward pass stand among their rows' keys.

    Attributes:
        positions: int64 ``[rows, queries]``; a query sees the keys at and before its position.
        columns: number of key columns in this pass, at least the largest position + 1.
    """

    def __init__(self, positions: Tensor, columns: int) -> None:
        self.positions = positions
        self.columns = columns
        self._masks: dict[tuple[int | None, int], Tensor | None] = {}
        # A stand-in for the mask, whose only job is to be 4-D: transformers hands such a mask
        # through untouched instead of building its own. Nothing reads it.
        self.placeholder = torch.zeros(1, 1, 1, 1)

    def mask(self, window: int | None, group: int) -> Tensor | None:
        """0 where a query sees a key and -inf elsewhere; None if each query sees every key.

        Args:
            window: sliding window in tokens, None for full attention.
            group: query heads to a key head.

        Returns:
            float32 ``[rows, 1, group * queries or 1, columns]``.
        """
        key = (window, group)
        if key not in self._masks:
            self._masks[key] = self._build(window, group)
        return self._masks[key]

    def _build(self, window: int | None, group: int) -> Tensor | None:
        queries = self.positions.unsqueeze(-1)
        keys = torch.arange(self.columns)
        seen = keys <= queries
        if window is not None:
            seen &= keys > queries - window
        if bool(seen.all()):
            return None
        mask = torch.zeros(seen.shape).masked_fill_(~seen, -torch.inf).unsqueeze(1)
        return mask if mask.shape[2] == 1 else mask.repeat(1, 1, group, 1)


class _ThreadState(threading.local):
    current: CachedPass | None = None


_thread = _ThreadState()


@contextmanager
def cached_pass(description: CachedPass) -> Iterator[None]:
    """Make this thread's forward passes attend over the cache as ``description`` says."""
    outer = _thread.current
    _thread.current = description
    try:
        yield
    finally:
        _thread.current = outer


def install(hf: Any) -> None:
    """Put the attention into a transformers model; a second call changes nothing."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    config = hf.config.get_text_config()
    name = config._attn_implementation
    if name.startswith(_PREFIX):
        return
    own = _PREFIX + name
    ALL_MASK_ATTENTION_FUNCTIONS.register(own, ALL_MASK_ATTENTION_FUNCTIONS[name])
    ALL_ATTENTION_FUNCTIONS.register(own, _over(name))
    config._attn_implementation = own


def _over(name: str) -> Any:
    """An attention function that does ours in a cached pass, and ``name``'s otherwise."""

    def attention(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        current = _thread.current
        if current is None:
            return _original(module, name)(module, query, key, value, attention_mask, **kwargs)
        return _attend(current, query, key, value, kwargs), None

    return attention


def _original(module: Any, name: str) -> Any:
    """The function that transformers would have called: the shared one, or the module's own."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    own: Any = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    return ALL_ATTENTION_FUNCTIONS.get_interface(name, own)


def _attend(
    current: CachedPass, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
) -> Tensor:
    """Attend ``query`` ``[rows, heads, queries, d]`` over ``key`` ``[rows, key heads, columns, d]``.

    Returns ``[rows, queries, heads, d of value]``.
    """
    rows, heads, queries, width = query.shape
    key_heads = key.shape[1]
    group = heads // key_heads
    scaling = options.get("scaling") or width**-0.5
    mask = current.mask(options.get("sliding_window"), group)
    grouped = query.reshape(rows, key_heads, group * queries, width)
    if options.get("s_aux") is None and options.get("softcap") is None:
        out = functional.scaled_dot_product_attention(
            grouped, key, value, attn_mask=mask, scale=scaling
        )
    else:
        out = _with_sinks(grouped, key, value, mask, scaling, queries, options)
    return out.reshape(rows, heads, queries, value.shape[-1]).transpose(1, 2).contiguous()


def _with_sinks(
    grouped: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float,
    queries: int,
    options: dict[str, Any],
) -> Tensor:
    """Attention with what the fused kernel lacks: capped scores (Gemma 2), sinks (gpt-oss).

    A sink is a learned score for each head that takes part in the softmax and carries no value.
    """
    scores = torch.matmul(grouped, key.transpose(2, 3)).mul_(scaling)
    cap = options.get("softcap")
    if cap is not None:
        scores = torch.tanh(scores / cap) * cap
    if mask is not None:
        scores = scores + mask
    sinks = options.get("s_aux")
    if sinks is None:
        return torch.matmul(scores.softmax(dim=-1), value)
    column = sinks.view(1, key.shape[1], -1, 1).repeat_interleave(queries, dim=2)
    largest = torch.maximum(scores.amax(dim=-1, keepdim=True), column)
    weights = scores.sub_(largest).exp_()
    total = weights.sum(dim=-1, keepdim=True) + (column - largest).exp()
    return torch.matmul(weights, value).div_(total)
