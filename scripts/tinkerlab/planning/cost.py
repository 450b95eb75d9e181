"""What a run will use and cost, from the numbers that decide it.

Billing is by tokens: prefill for prompts, sample for generated tokens, train for the tokens of
forward_backward (price page named in ``templates/prices.yaml``). How the service bills scoring
without gradients could not be checked; it is counted as training here, the dearer of the two.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tinkerlab.planning.prices import Price, PriceTable

MILLION = 1_000_000
BYTES_PER_PARAMETER = 4  # adapters are stored in float32
OPTIMIZER_STATES = 2  # Adam's two moments, in a training checkpoint beside the weights


@dataclass(frozen=True)
class Usage:
    """Tokens that a whole run uses.

    Attributes:
        prefill: prompt tokens of sampling that are read for the first time.
        cached: prompt tokens that repeat a prefix read before: other rollouts of the same prompt.
        scored: tokens that a reference model or a teacher reads to give their logprobs.
    """

    steps: int
    train: int = 0
    prefill: int = 0
    cached: int = 0
    sample: int = 0
    scored: int = 0


@dataclass(frozen=True)
class Estimate:
    """Usage and price of a run, in USD; storage is a month's."""

    model: str
    usage: Usage
    train_usd: float
    prefill_usd: float
    sample_usd: float
    scored_usd: float
    total_usd: float
    checkpoint_bytes: int | None
    storage_usd_month: float | None
    price: Price
    scorer_price: Price
    price_source: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def supervised_usage(
    tokens_per_epoch: int, epochs: float, steps: int, *, held_out_tokens: int = 0, evals: int = 0
) -> Usage:
    """SFT: every token of every epoch, and the held-out rows at each evaluation."""
    return Usage(steps=steps, train=round(tokens_per_epoch * epochs) + held_out_tokens * evals)


def preference_usage(tokens_per_epoch: int, epochs: float, steps: int) -> Usage:
    """DPO: both sides of every pair are trained on and scored by the reference model."""
    tokens = round(tokens_per_epoch * epochs)
    return Usage(steps=steps, train=tokens, scored=tokens)


def rl_usage(
    *,
    steps: int,
    groups: int,
    group_size: int,
    prompt_tokens: int,
    completion_tokens: int,
    teacher: bool = False,
) -> Usage:
    """RL or on-policy distillation.

    Each group reads its prompt once and repeats it from the cache for the other rollouts; each
    rollout's prompt and completion are trained on once, and read once by a teacher.
    """
    rollouts = steps * groups * group_size
    whole = rollouts * (prompt_tokens + completion_tokens)
    return Usage(
        steps=steps,
        train=whole,
        scored=whole if teacher else 0,
        prefill=steps * groups * prompt_tokens,
        cached=steps * groups * (group_size - 1) * prompt_tokens,
        sample=rollouts * completion_tokens,
    )


def estimate(
    model: str,
    usage: Usage,
    table: PriceTable,
    *,
    scorer: str | None = None,
    lora_parameters: int | None = None,
) -> Estimate:
    """Price ``usage``.

    Args:
        scorer: the teacher; None when ``model`` itself does the scoring.
        lora_parameters: of the adapter, for the size of its checkpoints; None when unknown.

    Raises:
        InputError: the table has no price for one of them.
    """
    price, scorer_price = table.of(model), table.of(scorer or model)
    fresh = usage.prefill + usage.cached * (1 - table.cached_prefill_discount)
    train = usage.train * price.train / MILLION
    prefill = fresh * price.prefill / MILLION
    sample = usage.sample * price.sample / MILLION
    scored = usage.scored * scorer_price.prefill / MILLION
    size = None
    if lora_parameters is not None:
        # A training checkpoint (weights and moments) and a sampler checkpoint (weights).
        size = lora_parameters * BYTES_PER_PARAMETER * (1 + OPTIMIZER_STATES + 1)
    return Estimate(
        model=model,
        usage=usage,
        train_usd=train,
        prefill_usd=prefill,
        sample_usd=sample,
        scored_usd=scored,
        total_usd=train + prefill + sample + scored,
        checkpoint_bytes=size,
        storage_usd_month=None if size is None else size / 1e9 * table.storage_gb_month,
        price=price,
        scorer_price=scorer_price,
        price_source=table.source,
    )
