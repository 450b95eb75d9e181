"""Findings about time: slow or irregular steps, and which part of a step is slow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tinkerlab.diagnosis.findings import Finding
from tinkerlab.diagnosis.run_analysis import names, thresholds
from tinkerlab.diagnosis.run_analysis.run import Run

if TYPE_CHECKING:
    import numpy as np

    from tinkerlab.diagnosis.run_analysis.series import Curve

ADVICE = {
    "get_batch": "the data: render and tokenize before the loop, or in a worker",
    "submit": "submitting: building and serializing the request, or a blocked event loop. Run"
    " scripts/serialization_test.py, then scripts/task_dump.py run",
    "step": "waiting for the service: its load, or steps that are not submitted ahead",
    "sampl": "sampling: long replies, few at once, or one slow environment",
    "eval": "the evaluation: fewer items, or less often",
    "save": "saving checkpoints: less often, or async_periodic_saves",
    "rollout": "rollouts: the environment or its tools",
}


def check(run: Run) -> Iterator[Finding]:
    """All findings about time."""
    total = run.metrics.curve(names.STEP_TIME, training_only=True)
    if total is None:
        return
    total = total.finite()
    if len(total) < 5:
        return
    yield from slow_steps(run, total)
    yield from slow_data(run, total)


def parts(run: Run, total: Curve) -> dict[str, np.ndarray]:
    """Seconds of each part at the steps of ``total``, 0 where a step has none of it: [n] each."""
    import numpy as np

    found = {}
    for key in run.metrics.keys:
        if not key.startswith(names.TIME) or key in (total.key, "time/total", "batch_time"):
            continue
        # Spans that overlap (rollouts at the same time) add up to more than the step: their
        # longest one is what the step waited for.
        if key.endswith((":count", ":mean", ":total", "_max", "_min", "_mean")):
            continue
        curve = run.metrics.curve(key)
        if curve is None:
            continue
        values = np.zeros(len(total))
        place = np.searchsorted(total.steps, curve.steps)
        inside = place < len(total)
        inside[inside] = total.steps[place[inside]] == curve.steps[inside]
        values[place[inside]] = np.nan_to_num(curve.values[inside])
        found[key.removeprefix(names.TIME).removesuffix(":max")] = values
    return found


def slow_steps(run: Run, total: Curve) -> Iterator[Finding]:
    """Steps many times slower than the usual one, without an evaluation or a save in them."""
    import numpy as np

    measured = parts(run, total)
    explained = np.zeros(len(total))
    for word in names.HOUSEKEEPING:  # spans of one kind nest, so the longest holds the others
        spans = [values for name, values in measured.items() if word in name]
        explained += np.max(spans, axis=0) if spans else 0
    own = np.maximum(total.values - explained, 0)
    usual = float(np.median(own))
    slow = (own > thresholds.SLOW_RATIO * usual) & (own - usual > thresholds.SLOW_SECONDS)
    slow[: thresholds.WARM_UP_STEPS] = False
    excess = float((own[slow] - usual).sum())
    if not slow.any() or excess < thresholds.SLOW_SHARE * float(total.values.sum()):
        return
    part, share = _where_the_excess_is(measured, slow, excess)
    worst = int(np.argmax(np.where(slow, own, 0)))
    steps = ", ".join(str(int(step)) for step in total.steps[slow][:8])
    evidence = [
        f"{total.key}: usually {usual:.3g} s; steps {steps} take up to {own[worst]:.3g} s",
        f"{int(slow.sum())} slow steps cost {excess:.3g} s of {total.values.sum():.4g} s",
    ]
    if part:
        evidence.append(f"{100 * share:.0f} % of that is in time/{part}")
        usual_part = float(np.median(measured[part]))
        evidence.append(f"time/{part}: usually {usual_part:.3g} s, {measured[part][worst]:.3g} s")
        advice = next((text for word, text in ADVICE.items() if word in part), f"time/{part}")
        fix = f"look at {advice}"
    else:
        evidence.append("no measured part explains it: the gap is outside of all time/* parts")
        fix = (
            "the time is lost in the script itself, between the measured parts (logging, data,"
            " a blocked event loop, the machine): run it under the watchdog"
        )
    yield Finding(
        cause="slow-steps" if part else "slow-steps-unaccounted",
        what=f"{int(slow.sum())} of {len(total)} steps take over {thresholds.SLOW_RATIO:.0f} times"
        f" the usual {usual:.3g} s",
        where=f"step {int(total.steps[worst])}",
        evidence=tuple(evidence),
        fix=fix,
        then="python scripts/task_dump.py run -- python train.py",
        severity="warning",
    )


def _where_the_excess_is(
    measured: dict[str, np.ndarray], slow: np.ndarray, excess: float
) -> tuple[str, float]:
    """(the innermost part that holds most of the slow steps' excess, its share); "" if none."""
    import numpy as np

    shares = {
        name: float((values[slow] - np.median(values)).sum()) / excess
        for name, values in measured.items()
        if not _is_housekeeping(name)
    }
    large = {name: share for name, share in shares.items() if share >= 0.5}
    if not large:
        return "", 0.0
    # Spans nest: of parts that explain it equally well, the smaller one is the inner one.
    name = min(large, key=lambda name: (float(measured[name][slow].sum()), -large[name]))
    return name, min(large[name], 1.0)


def _is_housekeeping(name: str) -> bool:
    return any(word in name for word in names.HOUSEKEEPING)


def slow_data(run: Run, total: Curve) -> Iterator[Finding]:
    """Most of every step is spent on making the batch."""
    import numpy as np

    batch = parts(run, total).get("get_batch")
    if batch is None:
        return
    usual, step = float(np.median(batch)), float(np.median(total.values))
    if usual < thresholds.BATCH_SECONDS or usual < thresholds.BATCH_SHARE * step:
        return
    yield Finding(
        cause="data-loading-slow",
        what=f"making the batch takes {usual:.2g} of a step's {step:.2g} seconds",
        evidence=(f"time/get_batch: median {usual:.3g} s; {total.key}: median {step:.3g} s",),
        fix="tokenize and render once before the loop, or prepare the next batch in a worker"
        " while the service trains",
        severity="warning",
    )
