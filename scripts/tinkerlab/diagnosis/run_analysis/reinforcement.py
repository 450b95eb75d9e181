"""Findings about RL: no signal, truncation, KL, entropy, length, format, and gaming of a reward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tinkerlab.diagnosis.findings import Finding
from tinkerlab.diagnosis.run_analysis import names, robust, thresholds
from tinkerlab.diagnosis.run_analysis.run import Run

if TYPE_CHECKING:
    from tinkerlab.diagnosis.run_analysis.series import Curve


def check(run: Run) -> Iterator[Finding]:
    """All findings about RL; of a run without RL metrics and rollouts, falling evaluations."""
    yield from reward_against_eval(run)
    if not run.is_rl and not run.rollouts.count:
        return
    yield from truncated(run)
    yield from equal_groups(run)
    yield from kl(run)
    yield from entropy(run)
    yield from format_only(run)
    yield from length(run)


def _curve(run: Run, keys: Sequence[str]) -> Curve | None:
    """The metric over the training steps, finite values only; None without any."""
    curve = run.metrics.curve(keys, training_only=True)
    if curve is None:
        return None
    curve = curve.finite()
    return curve if len(curve) else None


def truncated(run: Run) -> Iterator[Finding]:
    """Replies that end at the token limit instead of by themselves."""
    limit = run.setting("max_tokens")
    share, evidence = _cut_share(run, limit)
    if share < thresholds.TRUNCATED_WARNING:
        return
    renderer = run.config.get("renderer_name")
    if isinstance(renderer, str):
        evidence.append(f"renderer: {renderer} (a thinking one needs room for the thinking)")
    limit_text = f"max_tokens={limit:.0f}" if limit else "the token limit"
    what = (
        f"{100 * share:.0f} % of the replies are cut at {limit_text}"
        if share < 1
        else f"every reply is cut at {limit_text}"
    )
    correct = _curve(run, names.CORRECT)
    right = robust.last_level(correct.values) if correct is not None else 0.0
    if correct is not None and right > 1 - share + thresholds.TRUNCATED_WARNING:
        # More are right than end by themselves: the answer stands before the cut.
        yield Finding(
            cause="replies-truncated",
            what=f"{what}, after an answer that is graded right",
            evidence=(*evidence, f"{correct.key}: {right:.2g}"),
            fix="what follows the answer is waste: add a stop sequence, or reward a reply that"
            " ends; evaluate with a larger max_tokens before you compare models",
            severity="warning",
        )
        return
    yield Finding(
        cause="replies-truncated",
        what=what,
        evidence=tuple(evidence),
        fix="raise max_tokens to at least twice the length that a correct answer takes, or use"
        " a renderer without thinking; a reply that is cut has no answer to reward",
        severity="problem" if share >= thresholds.TRUNCATED_PROBLEM else "warning",
    )


def _cut_share(run: Run, limit: float | None) -> tuple[float, list[str]]:
    """(share of replies cut by the limit, the evidence), from rollouts or from mean lengths."""
    import numpy as np

    told_share = _curve(run, names.TRUNCATED)
    if told_share is not None:
        share = robust.last_level(told_share.values)
        return share, [f"{told_share.key}: {share:.2g} at the end of {len(told_share)} steps"]
    lengths = run.rollouts.reply_lengths
    turns = sum(lengths.values())
    if turns:
        longest = max(lengths)
        # Without a limit in the config, one length shared by many is the limit.
        at = limit if limit and limit in lengths else longest
        cut = sum(count for value, count in lengths.items() if value >= at)
        stops = run.rollouts.stops.get("max_tokens", 0)
        reported = stops >= thresholds.TRUNCATED_WARNING * run.rollouts.count
        if reported or (cut > 2 and longest >= 16) or (limit and longest >= limit):
            return max(cut / turns, stops / run.rollouts.count), [
                f"{cut:,} of {turns:,} sampled turns have {at:.0f} tokens or more",
                *((f"{stops:,} rollouts report stop/max_tokens",) if stops else ()),
            ]
        return 0.0, []
    curve = _curve(run, names.REPLY_TOKENS)
    if curve is None:
        return 0.0, []
    tail = curve.values[-robust.span(len(curve)) :]
    level = float(np.median(tail))
    if limit and level >= thresholds.AT_THE_LIMIT * limit:
        # The mean can only be this near to the limit if nearly all are at it.
        share = 1.0 if level >= 0.999 * limit else level / limit
        return share, [f"{curve.key}: {level:.4g} of max_tokens={limit:.0f}"]
    enough = len(curve) >= thresholds.REWARD_STEPS and level >= 16
    if enough and float(np.ptp(curve.values)) == 0 and level == round(level):
        return 1.0, [f"{curve.key} is exactly {level:.0f} at each of {len(curve)} steps"]
    return 0.0, []


def equal_groups(run: Run) -> Iterator[Finding]:
    """Groups whose rewards are all equal have advantages of zero: nothing is learned."""
    import numpy as np

    if run.is_distillation:
        return
    evidence: list[str] = []
    mixed = _curve(run, names.GROUPS_MIXED)
    reward = _curve(run, names.REWARD)
    found = False
    if mixed is not None:
        early = mixed.values[: max(1, len(mixed) // 2)]
        starved = float(np.median(mixed.values)) <= thresholds.MIXED_GROUPS
        # A task that is solved in the end had signal at first: that is success.
        found = starved and float(np.mean(early <= thresholds.MIXED_GROUPS)) >= 0.8
        evidence.append(f"{mixed.key}: median {np.median(mixed.values):.3g}")
    elif run.rollouts.groups:
        share = run.rollouts.equal_groups / run.rollouts.groups
        found = share >= 1 - thresholds.MIXED_GROUPS
        evidence.append(
            f"rollouts: {run.rollouts.equal_groups:,} of {run.rollouts.groups:,} groups have equal"
            " rewards"
        )
    elif reward is not None and len(reward) >= thresholds.REWARD_STEPS:
        found = float(np.ptp(reward.values)) == 0
    if not found:
        return
    for keys in (names.GROUPS_BAD, names.GROUPS_GOOD):
        curve = _curve(run, keys)
        if curve is not None:
            evidence.append(f"{curve.key}: median {np.median(curve.values):.3g}")
    level = None
    if reward is not None:
        level = float(np.median(reward.values))
        constant = "exactly" if float(np.ptp(reward.values)) == 0 else "about"
        evidence.append(f"{reward.key}: {constant} {level:.4g} over {len(reward)} steps")
    elif run.rollouts.count:
        level = run.rollouts.reward_high
        evidence.append(
            f"rewards of the rollouts: {run.rollouts.reward_low:.4g} to"
            f" {run.rollouts.reward_high:.4g}"
        )
    if level is not None and level <= 0:
        advice = (
            "no reply is ever right: read some replies (truncated? wrong format? a grader that"
            " rejects right answers?), then make the task easier or the reward denser"
        )
    elif level is not None and level >= 0.9:
        advice = "every reply is right: the task is solved from the start; use harder prompts"
    else:
        advice = "check the reward function: it gives the same number whatever the reply is"
    yield Finding(
        cause="reward-groups-all-equal",
        what="no group has unequal rewards, so every advantage is zero and nothing is learned",
        evidence=tuple(evidence),
        fix=advice,
    )


def kl(run: Run) -> Iterator[Finding]:
    """KL between sampler and trainer: high before any update, or growing."""
    import numpy as np

    curves = [
        (abs(curve.values), curve)
        for keys in (names.KL_SAMPLE_TRAIN, names.KL_SAMPLE_TRAIN_SQUARED)
        if (curve := _curve(run, keys)) is not None
    ]
    if not curves:
        return
    for values, curve in curves:
        if curve.steps[0] == 0 and values[0] > thresholds.KL_START:
            yield Finding(
                cause="kl-high-at-start",
                what=f"{curve.key} is {values[0]:.3g} before any update",
                where="step 0",
                evidence=(
                    f"{curve.key}: {', '.join(f'{value:.3g}' for value in values[:4])}",
                    f"healthy runs start under {thresholds.KL_START:g}",
                ),
                fix="sampler and trainer do not see the same thing: compare their logprobs on the"
                " same tokens, and check that prompts go through the model's renderer"
                " (no tokenizer.encode) and that the logprobs are those of the sampled tokens",
                then="python scripts/compare_sampling_training_logprobs.py MODEL",
            )
            return
    values, curve = curves[0]
    if len(values) < 8:
        return
    first, last = robust.first_level(values), robust.last_level(values)
    if last > thresholds.KL_STABLE and last > thresholds.KL_GROWTH * first:
        over = curve.steps[values > thresholds.KL_STABLE]
        stale = run.metrics.curve("sampling_client/step_min")
        evidence = [
            f"{curve.key}: {first:.3g} at first, {last:.3g} at the end, {np.max(values):.3g} at"
            " its highest",
            f"over {thresholds.KL_STABLE} first at step {int(over[0])}",
        ]
        if stale is not None:
            lag = float(np.median(stale.steps - stale.values))
            evidence.append(f"samples are up to {lag:.0f} steps old (sampling_client/step_min)")
        yield Finding(
            cause="kl-drift",
            what=f"{curve.key} grows from {first:.2g} to {last:.2g}",
            where=f"from step {int(over[0])}",
            evidence=tuple(evidence),
            fix="sample with the newest weights at every step, lower the learning rate or the"
            " updates per batch; off-policy, use a clipped loss (ppo, cispo) instead of"
            " importance_sampling",
        )


def entropy(run: Run) -> Iterator[Finding]:
    """Sampling that no longer explores, or that has become noise."""
    curve = _curve(run, names.ENTROPY)
    if curve is None or len(curve) < 8:
        return
    first, last = robust.first_level(curve.values), robust.last_level(curve.values)
    evidence = (f"{curve.key}: {first:.3g} at first, {last:.3g} at the end (nats per token)",)
    if last < thresholds.ENTROPY_LEFT * first and last < thresholds.ENTROPY_LOW:
        evals = scores(run, at_least=2)
        if any(score.values[-1] > score.values[0] and not falls(score) for score in evals):
            return  # sure of its answers, and right on held-out prompts: that is learning
        unclear = not evals and rises(_curve(run, names.REWARD))
        yield Finding(
            cause="entropy-collapse",
            what=f"the entropy falls from {first:.2g} to {last:.2g}: replies hardly differ",
            evidence=(
                *evidence,
                *(
                    ("the reward rises; no evaluation tells whether that is learning",)
                    if unclear
                    else ()
                ),
            ),
            severity="warning" if unclear else "problem",
            fix="go on from a checkpoint of before the fall with a lower learning rate, a KL"
            " penalty (kl_penalty_coef) or temperature 1, and more varied prompts",
        )
    elif last > thresholds.ENTROPY_EXPLODED * first and last > first + 1:
        yield Finding(
            cause="entropy-explosion",
            what=f"the entropy rises from {first:.2g} to {last:.2g}: replies turn into noise",
            evidence=evidence,
            fix="stop; go on from an earlier checkpoint with a lower learning rate and a KL penalty",
        )


def format_only(run: Run) -> Iterator[Finding]:
    """The reward is earned by the form of the replies; answers stay wrong."""
    form, correct = _curve(run, names.FORMAT), _curve(run, names.CORRECT)
    if form is None or correct is None or len(form) < 3 or len(correct) < 3:
        return
    form_rise = robust.last_level(form.values) - robust.first_level(form.values)
    rise = robust.last_level(correct.values) - robust.first_level(correct.values)
    never = float(correct.values.max()) <= thresholds.CORRECT_STILL
    level = robust.last_level(correct.values)
    learned_form = form_rise >= thresholds.FORMAT_RISE and rise <= thresholds.CORRECT_STILL
    form_alone = never and robust.last_level(form.values) >= thresholds.FORMAT_DONE
    if not (learned_form and level < 0.5) and not form_alone:
        return
    yield Finding(
        cause="format-reward-only",
        what="the replies learn the format and not the answers",
        evidence=(
            f"{form.key}: {robust.first_level(form.values):.3g} ->"
            f" {robust.last_level(form.values):.3g}",
            f"{correct.key}: {robust.first_level(correct.values):.3g} ->"
            f" {robust.last_level(correct.values):.3g}",
        ),
        fix="lower the format's share of the reward (format_coef) once it is learned, and read"
        " replies that are well formed and wrong: the task may be too hard, or the grader may"
        " reject right answers",
    )


def scores(run: Run, at_least: int = 3) -> list[Curve]:
    """Evaluation metrics that should rise, with at least so many values."""
    found = [run.metrics.curve(key) for key in run.metrics.keys if names.is_score(key)]
    return [c for curve in found if curve is not None and len(c := curve.finite()) >= at_least]


def falls(curve: Curve) -> bool:
    """Whether a score falls over the run, more than its noise."""
    first = curve.values[: max(1, len(curve) // 4)].mean()
    last = curve.values[-max(1, len(curve) // 4) :].mean()
    small = abs(curve.values).max() <= 1
    limit = thresholds.EVAL_DROP if small else thresholds.EVAL_DROP_SHARE * abs(first)
    limit = max(limit, 2 * robust.noise(curve.values))
    return bool(first - last > limit and robust.kendall(curve.values) <= -0.5)


def rises(reward: Curve | None) -> bool:
    """Whether a reward rises over the run, more than its own range and size make likely."""
    import numpy as np

    if reward is None or len(reward) < 5:
        return False
    rise = robust.last_level(reward.values) - robust.first_level(reward.values)
    share = thresholds.REWARD_RISE_SHARE * float(np.ptp(reward.values))
    return rise > max(share, min(thresholds.REWARD_RISE, 0.05 * float(abs(reward.values).max())))


def reward_against_eval(run: Run) -> Iterator[Finding]:
    """The training reward rises while an evaluation falls."""
    reward = _curve(run, names.REWARD)
    falling = [curve for curve in scores(run) if falls(curve)]
    if not falling:
        return
    rising = rises(reward)
    evidence = [
        f"{curve.key}: {curve.values[0]:.3g} at step {int(curve.steps[0])},"
        f" {curve.values[-1]:.3g} at step {int(curve.steps[-1])}"
        for curve in falling[:4]
    ]
    best = min(int(curve.steps[int(curve.values.argmax())]) for curve in falling)
    if reward is not None:
        evidence.insert(
            0,
            f"{reward.key}: {robust.first_level(reward.values):.3g} ->"
            f" {robust.last_level(reward.values):.3g}",
        )
    for keys in (names.REPLY_TOKENS, names.ENTROPY):
        curve = _curve(run, keys)
        if curve is not None:
            evidence.append(f"{curve.key}: {curve.values[0]:.3g} -> {curve.values[-1]:.3g}")
    yield Finding(
        cause="reward-up-eval-down" if rising else "eval-falls",
        what=f"the reward rises while {falling[0].key} falls: the reward is gamed or over-optimised"
        if rising
        else f"{falling[0].key} falls over the run",
        where=f"best evaluation at step {best}",
        evidence=tuple(evidence),
        fix=f"use a checkpoint near step {best}; read recent high-reward replies to see what they"
        " exploit, close that gap in the reward, add a KL penalty and a length limit",
    )


def length(run: Run) -> Iterator[Finding]:
    """Replies that grow many times over without a better evaluation."""
    curve = _curve(run, names.REPLY_TOKENS)
    if curve is None or len(curve) < 8:
        return
    first, last = robust.first_level(curve.values), robust.last_level(curve.values)
    if last < thresholds.LENGTH_GROWTH * first or last - first < 16:
        return
    evals = scores(run)
    if any(robust.kendall(score.values) > 0.3 for score in evals):
        return  # longer reasoning that pays
    reward = _curve(run, names.REWARD)
    evidence = [f"{curve.key}: {first:.4g} -> {last:.4g} tokens"]
    if reward is not None:
        evidence.append(
            f"{reward.key}: {robust.first_level(reward.values):.3g} ->"
            f" {robust.last_level(reward.values):.3g}"
        )
    evidence.append(
        f"no evaluation rises with it ({', '.join(score.key for score in evals[:3])})"
        if evals
        else "no evaluation is logged that could justify it"
    )
    yield Finding(
        cause="length-explosion",
        what=f"replies grow {last / first:.1f} times longer ({first:.0f} -> {last:.0f} tokens)",
        evidence=tuple(evidence),
        fix="look at long replies of high reward (repetition, hedging, filler?), take length out"
        " of the reward or penalise it, and evaluate on held-out prompts during the run",
        severity="warning" if not evals else "problem",
    )
