"""Findings about steps and resumes: twice, missing, mixed, or gone on without the old state."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from tinkerlab.diagnosis.findings import Finding
from tinkerlab.diagnosis.run_analysis import names, robust, thresholds
from tinkerlab.diagnosis.run_analysis.attempts import (
    Attempt,
    Attempts,
    checkpoint_step,
    is_final,
    steps_per_epoch,
    take_apart,
    values_of,
)
from tinkerlab.diagnosis.run_analysis.run import Run


def check(run: Run) -> Iterator[Finding]:
    """All findings about steps and resumes."""
    attempts = take_apart(run)
    if attempts.interleaved:
        yield interleaved(attempts)
        return
    for before, after in pairwise(attempts.listed):
        yield from restart(run, before, after)
    for step in seamless_resumes(run, attempts):
        yield from jump_at(run, attempts.listed[-1], step)
    yield from missing(run, attempts)


def is_interleaved(run: Run) -> bool:
    """Whether curves would join points of different runs."""
    return take_apart(run).interleaved


def interleaved(attempts: Attempts) -> Finding:
    shown = [
        f"a run of {len(attempt.rows)} rows, steps {attempt.first} to {attempt.last}"
        for attempt in attempts.listed[:6]
    ]
    return Finding(
        cause="runs-interleaved",
        what=f"{len(attempts.listed)} runs write into one metrics file",
        evidence=(f"the steps switch between sequences {attempts.returns} times", *shown),
        fix="stop all but one and give each run a log_path of its own; this file's curves join"
        " points of different runs, and checkpoints.jsonl is mixed as well, so do not resume"
        " from it",
    )


def restart(run: Run, before: Attempt, after: Attempt) -> Iterator[Finding]:
    """Steps that a later attempt logged again: trained twice, redone properly, or unexplained."""
    last = min(before.last, after.last)
    where = f"steps {after.first}-{last}" if last > after.first else f"step {after.first}"
    record = _record_at(run, after.first)
    pairs = _repeated_losses(run, before, after)
    first = pairs.get(after.first)
    change = (first[1] - first[0]) / max(abs(first[0]), 1e-12) if first else None
    shown = [f"step {s}: loss {a:.4g}, then {b:.4g}" for s, (a, b) in list(pairs.items())[:4]]
    if record is not None:
        shown.append(f"checkpoint {record.get('name')}: batch {record.get('batch')}")
    if after.first == before.first:
        yield _begun_again(before, where, shown)
        return
    yield from _rate_changed(run, before, after)
    if change is not None and change > thresholds.RESUME_JUMP and _back_at_start(run, first):
        yield _weights_lost(after.first, shown)
    elif change is not None and abs(change) <= thresholds.SAME_LOSS:
        yield from _optimizer_lost_on_repeat(run, after.first, pairs, shown)
    elif _is_replay(run, record, change):
        ahead = run.config.get("submit_ahead")
        ahead = ahead if isinstance(ahead, int) else thresholds.SUBMIT_AHEAD
        end = min(after.first + ahead, last)
        twice = f"steps {after.first}-{end}" if end > after.first else f"step {after.first}"
        yield Finding(
            cause="resume-replays-batch",
            what=f"{twice} trained twice: the checkpoint was labelled with a batch whose update"
            " was already queued",
            where=where,
            evidence=(
                *shown,
                *(
                    (
                        f"the loss at step {after.first} is {-100 * change:.1f} % lower the second"
                        " time: the weights had seen this batch",
                    )
                    if change is not None and change < 0
                    else ()
                ),
                "tinker-cookbook's supervised loop saves after it has submitted that step (and"
                f" {ahead} more: submit_ahead) and labels the save with it",
            ),
            fix="resume from a label that counts the updates: before the next resume set `batch`"
            f" of that record to {end + 1} (labelled batch + 1 + submit_ahead), or train with"
            " scripts/sl_trainer.py, whose records hold the exact `step`",
        )
    elif run.is_rl and record is not None:
        return  # sampled anew from the right weights: rl/train.py labels with the next batch
    else:
        yield Finding(
            cause="steps-duplicated",
            what=f"{where} logged twice",
            where=where,
            evidence=(
                f"{len(before.rows)} rows up to step {before.last}, then the file goes on at step"
                f" {after.first}",
                *shown,
            ),
            fix="if it is a second run, give it a log_path of its own; if it is a resume, compare"
            " checkpoints.jsonl with the step that it began with, and use the later row of each"
            " step in plots",
            severity="warning",
        )


def _begun_again(before: Attempt, where: str, shown: list[str]) -> Finding:
    return Finding(
        cause="steps-duplicated",
        what=f"{where} logged twice: the run began again in the same folder",
        where=where,
        evidence=(f"{len(before.rows)} rows up to step {before.last} came before", *shown),
        fix="give each run a log_path of its own; here, use the later row of each step, and of"
        " checkpoints.jsonl only the records of the later run",
        severity="warning",
    )


def _repeated_losses(run: Run, before: Attempt, after: Attempt) -> dict[int, tuple[float, float]]:
    """(first, second) loss of each step that both attempts trained."""
    key = run.metrics.first(names.TRAIN_LOSS)
    if key is None:
        return {}
    old, new = values_of(run, before, key), values_of(run, after, key)
    return {step: (old[step], new[step]) for step in sorted(old.keys() & new.keys())}


def _record_at(run: Run, step: int) -> dict[str, Any] | None:
    """The checkpoint whose label sends a resumed run to ``step``."""
    per_epoch = steps_per_epoch(run)
    for record in reversed(run.checkpoints):
        if not is_final(record) and checkpoint_step(run, record, per_epoch) == step:
            return record
    return None


def _is_replay(run: Run, record: dict[str, Any] | None, change: float | None) -> bool:
    """Whether the steps after the label were in the checkpoint already.

    Either the first repeated loss is lower than before, or, where no loss tells, the record is
    one of tinker-cookbook's supervised loop, which labels a save with the batch in flight.
    """
    if run.is_rl:
        return False
    if change is not None:
        return change < -thresholds.SAME_LOSS
    return record is not None and "step" not in record and "dpo_loss" not in run.metrics


def _back_at_start(run: Run, first: tuple[float, float] | None) -> bool:
    """Whether the second loss is nearer to the run's first loss than to the one before."""
    loss = run.loss
    if first is None or loss is None:
        return False
    start = robust.first_level(loss.finite().values)
    return abs(first[1] - start) < abs(first[1] - first[0])


def _optimizer_lost_on_repeat(
    run: Run, step: int, pairs: dict[int, tuple[float, float]], shown: list[str]
) -> Iterator[Finding]:
    """Equal loss at the first repeated step, other ones after it: the update was another one."""
    later = [pair for number, pair in pairs.items() if number > step]
    changes = [(new - old) / max(abs(old), 1e-12) for old, new in later]
    if not changes or max(changes) <= thresholds.RESUME_JUMP / 2:
        return
    yield _optimizer_lost(step, shown, f"step {step} has the same loss, later ones do not")


def seamless_resumes(run: Run, attempts: Attempts) -> list[int]:
    """Steps at which a new training client went on without repeating rows.

    Told by this project's attempts.jsonl, or by another training run in the checkpoints' paths.
    """
    steps = {
        row["first_step"]
        for row in run.attempts
        if isinstance(row.get("first_step"), int) and row["first_step"] > 0
    }
    per_epoch = steps_per_epoch(run)
    runs = [
        (str(row.get("state_path") or row.get("sampler_path") or "").split("/")[2:3], row)
        for row in run.checkpoints
    ]
    for (old, record), (new, _) in pairwise(runs):
        position = checkpoint_step(run, record, per_epoch)
        if old and new and old != new and position is not None:
            steps.add(position)
    steps -= {attempt.first for attempt in attempts.listed}
    return sorted(steps)


def jump_at(run: Run, attempt: Attempt, step: int) -> Iterator[Finding]:
    """A loss that jumps at or right after a resume."""
    import numpy as np

    key = run.metrics.first(names.TRAIN_LOSS)
    if key is None:
        return
    values = values_of(run, attempt, key)
    before = np.array([values[s] for s in sorted(values) if s < step][-10:])
    after = np.array([values[s] for s in sorted(values) if s >= step][:10])
    if len(before) < 3 or len(after) < 3:
        return
    level = float(np.median(before[-5:]))
    noise = max(robust.noise(before), 0.01 * level)
    limit = level + max(thresholds.NOISE_SIGMAS * noise, thresholds.RESUME_JUMP * level)
    shown = [
        f"loss before: {', '.join(f'{value:.4g}' for value in before[-5:])}",
        f"loss from step {step}: {', '.join(f'{value:.4g}' for value in after[:5])}",
    ]
    start = robust.first_level(np.array(list(values.values())))
    if after[0] > limit and abs(after[0] - start) < abs(after[0] - level):
        yield _weights_lost(step, shown)
    elif float(np.median(after[1:4])) > limit or after[0] > limit:
        yield _optimizer_lost(step, shown, f"a new training client went on at step {step}")


def _optimizer_lost(step: int, shown: list[str], reason: str) -> Finding:
    return Finding(
        cause="optimizer-state-lost",
        what=f"the loss jumps after the resume at step {step}: Adam's moments were not restored",
        where=f"from step {step}",
        evidence=(reason, *shown),
        fix="resume with create_training_client_from_state_with_optimizer(path) and a weights/"
        " path; create_training_client_from_state loads the weights alone and starts Adam anew",
    )


def _weights_lost(step: int, shown: list[str]) -> Finding:
    return Finding(
        cause="weights-not-restored",
        what=f"the loss at step {step} is back where the run began: the resume did not load the"
        " checkpoint",
        where=f"step {step}",
        evidence=tuple(shown),
        fix="create the client from the newest state_path of checkpoints.jsonl"
        " (create_training_client_from_state_with_optimizer), not with"
        " create_lora_training_client",
    )


def _rate_changed(run: Run, before: Attempt, after: Attempt) -> Iterator[Finding]:
    """Another learning rate at the same step: the resumed run had another config."""
    key = run.metrics.first(names.LEARNING_RATE)
    if key is None:
        return
    old, new = values_of(run, before, key), values_of(run, after, key)
    peak = max((*old.values(), *new.values()), default=0.0)
    for step in sorted(old.keys() & new.keys()):
        if abs(old[step] - new[step]) > thresholds.LR_TOLERANCE * peak:
            yield Finding(
                cause="lr-changed-on-resume",
                what=f"the learning rate of step {step} is {new[step]:.3g} after the resume and"
                f" was {old[step]:.3g}",
                where=f"step {step}",
                evidence=(f"{key}: {old[step]:.6g} first, {new[step]:.6g} later",),
                fix="resume with the config that the run began with: the schedule depends on the"
                " peak and on the total number of steps",
            )
            return


def missing(run: Run, attempts: Attempts) -> Iterator[Finding]:
    """Steps that no row has, between the first and the last."""
    import numpy as np

    steps = np.unique(run.metrics.row_steps()[run.metrics.training_rows()])
    gaps = np.flatnonzero(np.diff(steps) > attempts.stride)
    if not len(gaps) or len(gaps) > len(steps) / 4:  # irregular logging is no gap
        return
    shown = [f"after step {int(steps[i])} comes step {int(steps[i + 1])}" for i in gaps[:5]]
    lost = int(sum((steps[i + 1] - steps[i]) // attempts.stride - 1 for i in gaps))
    broken = run.metrics_reader.bad if run.metrics_reader else []
    if broken:
        shown.append(f"lines that are no JSON: {', '.join(map(str, broken))}")
    yield Finding(
        cause="steps-missing",
        what=f"{lost} step{'s' if lost > 1 else ''} missing from the metrics",
        where=f"after step {int(steps[gaps[0]])}",
        evidence=tuple(shown),
        fix="if the run was resumed there, the checkpoint was labelled too far: these batches"
        " were never trained. Compare the label in checkpoints.jsonl with the last row before"
        " the gap",
    )
