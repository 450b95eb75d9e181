"""From the measured gaps to a cause."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tinkerlab.diagnosis.findings import Finding
from tinkerlab.diagnosis.logprob_gap.statistics import Gap, false_zeros, gap, worst

# A gap passes up to twice the noise floor of the same run; the floor is taken as at least
# this, because float32 arithmetic in another order already moves a logprob by about 1e-5.
FLOOR = 1e-4
TIMES = 2.0
# Without a floor of its own (no checkpoint: the comparison is the floor) a mean difference up to
# this passes. bfloat16 keeps 8 bits, and its rounding moves logits of size 10 by some 0.04.
WITHOUT_FLOOR = 0.05


@dataclass(frozen=True)
class Scores:
    """Logprobs of the same N sampled tokens, in nats.

    Attributes:
        tokens: the sampled ids.
        sampled: as returned with the samples.
        sampler: recomputed by the same sampler (``compute_logprobs``).
        trainer: by the trainer's forward pass.
        base_sampler, base_trainer: by the base model and by a trainer with an untouched adapter;
            None when there is no checkpoint, because the two above are just these.
    """

    tokens: list[int]
    sampled: list[float]
    sampler: list[float]
    trainer: list[float]
    base_sampler: list[float] | None = None
    base_trainer: list[float] | None = None


@dataclass(frozen=True)
class Judged:
    """Findings, and the gaps by name for ``--json`` and the text."""

    findings: list[Finding]
    gaps: dict[str, Gap]
    allowed: float


def judge(model: str, scores: Scores, temperature: float, tokenizer: Any) -> Judged:
    """Name what is wrong with one model's logprobs."""
    gaps = {
        "sampled vs trainer": gap(scores.sampled, scores.trainer),
        "sampler vs trainer": gap(scores.sampler, scores.trainer),
        "sampled vs sampler": gap(scores.sampled, scores.sampler),
    }
    allowed = WITHOUT_FLOOR
    if scores.base_sampler is not None and scores.base_trainer is not None:
        gaps["noise floor (base model)"] = gap(scores.base_sampler, scores.base_trainer)
        allowed = TIMES * max(gaps["noise floor (base model)"].mean, FLOOR)
    findings = []
    zeros = false_zeros(scores.sampled, scores.trainer)
    if zeros:
        findings.append(
            Finding(
                "logprobs-exactly-zero",
                f"{zeros} of {len(scores.tokens)} sampled logprobs are exactly 0.0 where the "
                "trainer is not certain",
                model,
                tuple(worst(scores.tokens, scores.sampled, scores.trainer, tokenizer)),
                "the sampler does not return the distribution that it samples from: importance "
                "ratios from these are wrong. Temperature near 0 does this; sample at 1",
            )
        )
    findings += _weights(model, scores, gaps, allowed, tokenizer)
    findings += _temperature(model, gaps, allowed, temperature)
    return Judged(findings, gaps, allowed)


def _weights(
    model: str, scores: Scores, gaps: dict[str, Gap], allowed: float, tokenizer: Any
) -> list[Finding]:
    """The recomputed logprobs decide: neither temperature nor the sampling loop is in them."""
    between = gaps["sampler vs trainer"]
    if between.mean <= allowed:
        return []
    evidence = [f"sampler vs trainer: {between.line()}", f"allowed: mean {allowed:.3g}"]
    floor = gaps.get("noise floor (base model)")
    if floor is not None:
        evidence.append(f"noise floor (base model): {floor.line()}")
    evidence += worst(scores.tokens, scores.sampler, scores.trainer, tokenizer)
    if scores.base_sampler is not None:
        to_base = gap(scores.sampler, scores.base_sampler)
        if to_base.mean <= allowed:
            return [
                Finding(
                    "adapter-not-applied",
                    "the sampler gives the base model's logprobs, not the checkpoint's",
                    model,
                    (f"sampler vs base model: {to_base.line()}", *evidence),
                    "sample from the checkpoint: create_sampling_client(model_path=...) with the "
                    "path that save_weights_for_sampler returned, not base_model=...",
                )
            ]
    return [
        Finding(
            "sampler-weights-differ",
            "sampler and trainer give the same tokens different logprobs: other weights",
            model,
            tuple(evidence),
            "make a new sampling client after each save (a client keeps the weights that it was "
            "created with), and check that both paths name the same step of the same run",
            then="python scripts/check_pipelining.py train.py",
        )
    ]


def _temperature(
    model: str, gaps: dict[str, Gap], allowed: float, temperature: float
) -> list[Finding]:
    between = gaps["sampled vs sampler"]
    if between.mean <= allowed:
        return []
    scaled = temperature != 1.0
    what = f"logprobs returned with samples at temperature {temperature:g} are not the model's"
    fix = (
        "sample at temperature 1 when the logprobs feed a loss; at another temperature recompute "
        "them with compute_logprobs"
        if scaled
        else "sampler and its own recomputation disagree at temperature 1: report it to the service"
    )
    return [
        Finding(
            "temperature-in-logprobs" if scaled else "sampled-logprobs-differ",
            what,
            model,
            (f"sampled vs recomputed by the same sampler: {between.line()}",),
            fix,
        )
    ]
