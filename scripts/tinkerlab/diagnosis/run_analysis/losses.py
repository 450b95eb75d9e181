"""Findings about losses: not finite, diverged, spiked, flat, over-fitted, on another scale."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tinkerlab.diagnosis.findings import Finding
from tinkerlab.diagnosis.run_analysis import names, robust, thresholds
from tinkerlab.diagnosis.run_analysis.run import Run

if TYPE_CHECKING:
    import numpy as np

    from tinkerlab.diagnosis.run_analysis.series import Curve


def check(run: Run) -> Iterator[Finding]:
    """All findings about losses."""
    yield from not_finite(run)
    loss = run.loss
    if loss is not None:
        loss = loss.finite()
        if has_diverged(loss.values):
            yield _diverged(run, loss)
        else:
            yield from spikes(loss)
            yield from plateau(loss)
    yield from overfitting(run)
    yield from loss_scale(run)


def not_finite(run: Run) -> Iterator[Finding]:
    """NaN or infinity in a metric that is a number in every healthy row."""
    import numpy as np

    first: dict[str, int] = {}
    counts: dict[str, int] = {}
    steps = run.metrics.row_steps()
    for key in run.metrics.keys:
        if key not in names.FINITE and not key.startswith("teacher_kl/"):
            continue
        rows, values = run.metrics.sparse(key)
        bad = np.union1d(rows[~np.isfinite(values)], run.metrics.lost_at(key))
        if len(bad):
            first[key], counts[key] = int(steps[bad[0]]), len(bad)
    if not first:
        return
    key = min(first, key=lambda name: first[name])
    evidence = [f"{name}: {counts[name]} rows, from step {step}" for name, step in first.items()]
    curve = run.metrics.curve(key)
    if curve is not None:
        before = curve.finite()
        before_values = before.values[before.steps < first[key]]
        if len(before_values):
            shown = ", ".join(f"{value:.4g}" for value in before_values[-6:])
            evidence.append(f"{key} before: {shown}")
    rate = run.learning_rate
    if rate is not None and len(rate.finite()):
        evidence.append(f"learning rate: {rate.finite().values.max():.3g} at its highest")
    yield Finding(
        cause="loss-not-finite",
        what=f"{key} is not a finite number from step {first[key]} on",
        where=f"step {first[key]}",
        evidence=tuple(evidence[:8]),
        fix="stop the run: every later checkpoint holds NaN weights. Go on from a checkpoint of"
        f" before step {first[key]} with a lower learning rate (or AdamParams.grad_clip_norm);"
        " if it was NaN from the first step, look for examples without a trained token",
    )


def has_diverged(values: np.ndarray) -> bool:
    """Whether a loss of finite values ends far above its lowest level, or above its start."""
    if len(values) < 5:
        return False
    _, lowest = robust.lowest_level(values)
    last = robust.last_level(values)
    # The steps of a diverging loss are themselves large: take the noise where it was calm.
    noise = min(robust.noise(values[: max(len(values) // 2, 3)]), robust.noise(values))
    rise = last - lowest
    tail = values[-robust.span(len(values)) :]
    # Losses that jump about in the thousands are noisy, and none of them is near the lowest.
    if tail.min() > thresholds.FAR_ABOVE * max(lowest, robust.first_level(values[:3])):
        return True
    if rise <= max(thresholds.NOISE_SIGMAS * noise, thresholds.DIVERGED_NATS):
        return False
    above_start = last > thresholds.RISE_ABOVE_START * robust.first_level(values)
    few = len(values) < thresholds.FEW_STEPS
    ratio = thresholds.DIVERGED_RATIO_FEW if few else thresholds.DIVERGED_RATIO
    return last > ratio * lowest or (above_start and len(values) >= 20)


def _diverged(run: Run, loss: Curve) -> Finding:
    index, lowest = robust.lowest_level(loss.values)
    step = int(loss.steps[index])
    shown = ", ".join(f"{value:.4g}" for value in loss.values[-6:])
    evidence = [
        f"{loss.key}: about {lowest:.4g} near step {step}, {robust.last_level(loss.values):.4g}"
        f" at the end (last values {shown})"
    ]
    rate = run.learning_rate
    if rate is not None and len(rate.finite()):
        evidence.append(f"learning rate: {rate.finite().values.max():.3g} at its highest")
    return Finding(
        cause="loss-diverged",
        what=f"the training loss rises from {lowest:.3g} to {robust.last_level(loss.values):.3g}",
        where=f"from step {step}",
        evidence=tuple(evidence),
        fix="stop; begin again (or go on from a checkpoint of before the rise) with a learning"
        " rate of a third to a tenth, and a short warm-up",
    )


def spikes(loss: Curve) -> Iterator[Finding]:
    """Single losses far above the ones before them, in a run that recovers."""
    import numpy as np

    window = 10
    if len(loss) < window + 2:
        return
    before = np.lib.stride_tricks.sliding_window_view(loss.values, window)[:-1]
    median = np.median(before, axis=1)
    excess = loss.values[window:] - median
    sigma = robust.MAD_TO_SIGMA * float(np.median(np.abs(excess)))
    limit = np.maximum(thresholds.SPIKE_SIGMAS * sigma, thresholds.SPIKE_NATS)
    found = np.flatnonzero(
        (excess > limit) & (loss.values[window:] > thresholds.SPIKE_RATIO * median)
    )
    if not len(found):
        return
    worst = int(found[np.argmax(excess[found])])
    step = int(loss.steps[worst + window])
    yield Finding(
        cause="loss-spike",
        what=f"the training loss jumps from about {median[worst]:.3g} to"
        f" {loss.values[worst + window]:.3g} at step {step}",
        where=f"step {step}",
        evidence=(
            f"{len(found)} of {len(loss)} steps are {thresholds.SPIKE_SIGMAS} robust standard"
            f" deviations ({sigma:.2g}) above the {window} steps before them",
            "steps: " + ", ".join(str(int(loss.steps[i + window])) for i in found[:10]),
        ),
        fix="look at that batch (very long, garbled or mislabelled examples); if it comes with"
        " the learning rate's peak, warm up or lower it; AdamParams.grad_clip_norm bounds it",
        severity="warning",
    )


def plateau(loss: Curve) -> Iterator[Finding]:
    """A loss that never fell. A loss that fell and then stays is how runs end."""
    import numpy as np

    if len(loss) < thresholds.FLAT_STEPS:
        return
    level = float(np.median(loss.values))
    fall, error = robust.fitted_fall(loss.steps, loss.values)
    fifth = len(loss) // 5
    fifths = [float(np.median(loss.values[i * fifth : (i + 1) * fifth])) for i in range(5)]
    drop = fifths[0] - min(fifths)
    constant = float(np.ptp(loss.values)) == 0
    flat = max(fall, drop) + 2 * error < thresholds.FLAT_SHARE * abs(level)
    if level < thresholds.SPIKE_NATS or not (constant or flat):
        return
    yield Finding(
        cause="loss-plateau",
        what=f"the training loss has not fallen over {len(loss)} steps: it stays at {level:.3g}",
        evidence=(
            f"a straight line through {loss.key} falls by {fall:.3g} (standard error {error:.2g})",
            *(("every value is the same: nothing was updated",) if constant else ()),
        ),
        fix="check that optim_step is submitted after every forward_backward, that the learning"
        " rate is not near zero, and that the loss weights mark the tokens to be learned",
        then="python scripts/check_data.py --data FILE --model MODEL",
        severity="warning",
    )


def overfitting(run: Run) -> Iterator[Finding]:
    """The held-out loss rises again while the training loss goes on falling."""
    import numpy as np

    held_out, loss = run.metrics.curve(names.HELD_OUT_LOSS), run.loss
    if held_out is None:
        return
    held_out = held_out.finite()
    if len(held_out) < 4:
        return
    best = int(np.argmin(held_out.values))
    lowest, last = float(held_out.values[best]), float(held_out.values[-1])
    rise = max(thresholds.OVERFIT_SHARE * lowest, thresholds.OVERFIT_NATS)
    later = held_out.values[best + 1 :]
    # Two evaluations in a row, so that one odd evaluation is not taken for a trend.
    if len(later) < 2 or last - lowest < rise or later[-2] - lowest < rise / 3:
        return
    step = int(held_out.steps[best])
    evidence = [
        f"{held_out.key}: lowest {lowest:.4g} at step {step}, {last:.4g} at step"
        f" {int(held_out.steps[-1])}"
    ]
    if loss is not None:
        loss = loss.finite()
        then = loss.values[max(int(np.searchsorted(loss.steps, step)) - 5, 0) :]
        if len(then) < 2 or has_diverged(loss.values):
            return
        falling = robust.last_level(then) < robust.first_level(then)
        if not falling:
            return
        evidence.append(
            f"{loss.key}: {robust.first_level(then):.4g} there, {robust.last_level(then):.4g}"
            " at the end"
        )
    saved = [row for row in run.checkpoints if isinstance(row.get("step"), int)]
    nearest = min(saved, key=lambda row: abs(row["step"] - step), default=None)
    if nearest:
        evidence.append(f"nearest checkpoint: {nearest.get('name')} (step {nearest['step']})")
    yield Finding(
        cause="overfitting",
        what=f"the held-out loss rises from {lowest:.3g} (step {step}) to {last:.3g} while the"
        " training loss falls",
        where=f"from step {step}",
        evidence=tuple(evidence),
        fix=f"use the checkpoint nearest to step {step}; next time fewer epochs, more data or a"
        " lower rank and learning rate",
    )


def loss_scale(run: Run) -> Iterator[Finding]:
    """Rows whose loss weights sum to 1 per example, and rows whose weights count tokens."""
    import numpy as np

    sides = weights_per_example(run)
    if sides is None:
        return
    per_example, steps = sides
    mean_rows, sum_rows = np.flatnonzero(per_example), np.flatnonzero(~per_example)
    if not len(mean_rows) or not len(sum_rows):
        return
    change = int(np.flatnonzero(per_example != per_example[0])[0])
    yield Finding(
        cause="loss-scale-changed",
        what=f"the loss is on another scale from step {int(steps[change])} on",
        where=f"step {int(steps[change])}",
        evidence=(
            f"{len(mean_rows)} rows: the loss weights sum to 1 per example",
            f"{len(sum_rows)} rows: they sum to the trained tokens",
        ),
        fix="do not compare or average across the change: gradients differ by the number of"
        " tokens, and so does the fitting learning rate. Use one reduction throughout"
        " (conversation_to_datum: mean; datum_from_model_input_weights: none)",
    )


def weights_per_example(run: Run) -> tuple[np.ndarray, np.ndarray] | None:
    """([n] whether the weights sum to 1 per example, [n] steps); None where rows do not tell.

    tinker-cookbook logs the sum of the weights as ``num_loss_tokens``. This project's trainer
    logs the count of trained tokens under that name, and its weights always sum to 1.
    """
    import numpy as np

    if "base_model" in run.config or run.attempts:
        return None
    tokens, sequences = (
        run.metrics.curve(names.LOSS_TOKENS),
        run.metrics.curve(names.SEQUENCES),
    )
    if tokens is None or sequences is None:
        return None
    steps, left, right = np.intersect1d(tokens.steps, sequences.steps, return_indices=True)
    ratio = tokens.values[left] / np.maximum(sequences.values[right], 1)
    return np.abs(ratio - 1) < 0.02, steps
