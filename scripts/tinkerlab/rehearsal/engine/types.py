"""What goes into and comes out of the engine: plain data, no torch, no wire format."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

StopReason = Literal["stop", "length"]


@dataclass(frozen=True)
class TrainingDatum:
    """One training example.

    Attributes:
        tokens: int64 ``[T]``, the model input.
        loss_inputs: named arrays that the loss reads: ``target_tokens`` int64 ``[T]`` (or
            ``[T, K]`` for soft targets), ``weights``, ``logprobs``, ``advantages``, ...
            float32 of the targets' shape.
    """

    tokens: np.ndarray
    loss_inputs: dict[str, np.ndarray]


@dataclass
class ForwardBackwardResult:
    """Per-datum arrays (``logprobs`` and ``elementwise_loss``) and ``name:reduction`` metrics."""

    outputs: list[dict[str, np.ndarray]]
    metrics: dict[str, float]


@dataclass(frozen=True)
class AdamSettings:
    """One optimizer step's settings; names, meaning and defaults of ``tinker.AdamParams``."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


@dataclass(frozen=True)
class AdapterConfig:
    """What ``tinker.LoraConfig`` says of an adapter.

    ``alpha`` is fixed: the hosted service trains with alpha 32 at every rank
    ("LoRA Without Regret", Thinking Machines, 2025, section on parametrization).
    """

    rank: int
    seed: int | None = None
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = True
    alpha: float = 32.0


@dataclass(frozen=True)
class SamplingRequest:
    """One sampling request; names and meaning of ``tinker.types.SampleRequest``.

    Attributes:
        tokens: the prompt's token ids.
        max_tokens: most new tokens; None fills the context window.
        stop_strings: stop once the decoded completion holds one of these.
        stop_tokens: token ids that end the completion (the stop token is part of it);
            None means the model's end-of-sequence tokens, empty means none at all.
        target_prompt_logprobs: int64 ``[len(tokens) - 1, K]``, -1 for "nothing asked".
    """

    tokens: list[int]
    num_samples: int = 1
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int | None = None
    stop_strings: tuple[str, ...] = ()
    stop_tokens: frozenset[int] | None = None
    prompt_logprobs: bool = False
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    target_prompt_logprobs: np.ndarray | None = None
    prompt_alt_tokens_k: int = 0
    prompt_logprobs_last_n: int | None = None


@dataclass
class TopK:
    """Row-major top-k table: int32 ids and float32 logprobs, both ``[N, k]``.

    Empty cells hold token 0 and logprob -99999.0 (tinker/proto/tinker_public_pb2.pyi).
    """

    token_ids: np.ndarray
    logprobs: np.ndarray


@dataclass
class SampledTokens:
    """One completion; ``logprobs`` float32, one for each token."""

    tokens: np.ndarray
    logprobs: np.ndarray
    stop_reason: StopReason
    topk: TopK | None = None


@dataclass
class SamplingResult:
    """What one sampling request yields.

    Attributes:
        prompt_logprobs: float32 ``[len(prompt)]``, NaN where there is none (position 0).
        target_prompt_logprobs: float32, shape of the request's table, 0.0 where -1 was asked.
        alt_tokens: int32 ``[len(prompt) - 1, k]`` and their float32 logprobs.
    """

    sequences: list[SampledTokens] = field(default_factory=list)
    prompt_logprobs: np.ndarray | None = None
    topk_prompt_logprobs: TopK | None = None
    target_prompt_logprobs: np.ndarray | None = None
    alt_tokens: tuple[np.ndarray, np.ndarray] | None = None
