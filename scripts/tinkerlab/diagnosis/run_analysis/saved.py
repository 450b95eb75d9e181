"""Findings about checkpoints, and about how a run ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from tinkerlab.diagnosis.findings import Finding
from tinkerlab.diagnosis.run_analysis import names, thresholds
from tinkerlab.diagnosis.run_analysis.attempts import checkpoint_step, is_final, steps_per_epoch
from tinkerlab.diagnosis.run_analysis.run import Run


def check(run: Run) -> Iterator[Finding]:
    """All findings about checkpoints and the end of the run."""
    last = last_step(run)
    if last is not None:
        yield from final_label(run, last)
        yield from absent(run, last)
    yield from expiring(run)
    yield from stopped(run)


def last_step(run: Run) -> int | None:
    rows = run.metrics.training_rows()
    return int(run.metrics.row_steps()[rows].max()) if len(rows) else None


def final_record(run: Run) -> dict[str, Any] | None:
    return next((row for row in reversed(run.checkpoints) if is_final(row)), None)


def is_complete(run: Run) -> bool | None:
    """Whether the last step of the plan is logged; None when nothing tells the plan."""
    last = last_step(run)
    planned = run.setting("num_steps") or run.setting("max_steps")
    if last is not None and planned and last + 1 >= planned:
        return True
    progress = run.progress
    if progress is None or len(progress) < 2:
        return None
    done = float(progress.values[-1])
    step = float(progress.values[-1] - progress.values[-2]) / max(
        int(progress.steps[-1] - progress.steps[-2]), 1
    )
    # Some loops log step / total, so that the last row stands one step below 1.
    return done + 0.5 * step >= 1 or abs(done + step - 1) < 0.05 * abs(step)


def final_label(run: Run, last: int) -> Iterator[Finding]:
    """A final checkpoint whose label is not the number of steps done."""
    record = final_record(run)
    if record is None:
        return
    per_epoch = steps_per_epoch(run)
    position = checkpoint_step(run, record, per_epoch)
    epoch, batch = record.get("epoch"), record.get("batch")
    if position is None:
        # tinker-cookbook labels the end with the next epoch's batch 0: right by itself.
        if epoch != 0 and batch == 0:
            return
        if per_epoch is None and epoch == 1 and batch == last + 1:
            position = 2 * (last + 1)  # the whole run counted twice
    if position is None or position == last + 1:
        return
    if run.setting("max_steps") and position > last + 1:
        return  # cut short on purpose; the cookbook then labels the end of the last epoch
    done = last + 1
    effect = "skip" if position > done else "do again"
    yield Finding(
        cause="final-checkpoint-label",
        what=f"the final checkpoint is labelled as step {position}, the run did {done}",
        where="checkpoints.jsonl",
        evidence=(
            f"record {record.get('name')}: batch {batch}, epoch {epoch},"
            f" step {record.get('step', 'not recorded')}",
            f"the last logged step is {last} (counted from 0)",
            *((f"an epoch has {per_epoch} batches",) if per_epoch else ()),
        ),
        fix=f"a run that goes on from it would {effect} {abs(done - position)} steps: correct the"
        f" record to {done} updates before you extend the run; the weights themselves are fine",
    )


def absent(run: Run, last: int) -> Iterator[Finding]:
    """Checkpoints that the config asks for, or the final one, are not recorded."""
    # A folder of metrics alone may be an excerpt; one whose config asks for saves is not.
    if run.folder is None or not (run.setting("save_every") or run.checkpoints):
        return
    per_epoch = steps_per_epoch(run)
    positions = [
        position
        for row in run.checkpoints
        if (position := checkpoint_step(run, row, per_epoch)) is not None
    ]
    if len(positions) < len(run.checkpoints):
        return  # labels that cannot be read say nothing about what is missing
    ended = is_complete(run) and final_record(run) is None and run.holder is None
    if ended and max(positions, default=0) <= last:  # another loop's last save has another name
        yield Finding(
            cause="final-checkpoint-missing",
            what="the last step is logged but no final checkpoint is recorded",
            where="checkpoints.jsonl",
            evidence=(
                f"{len(run.checkpoints)} records, the newest at step {max(positions, default=0)},"
                f" the last step is {last}",
                *_ttl_note(run),
            ),
            fix="if the process still runs, it hangs in its last save or shutdown: see where."
            " Otherwise save from the newest periodic checkpoint before it expires",
            then="python scripts/task_dump.py attach PID",
        )
        return
    every = run.setting("save_every")
    if not every or last + 1 < 2 * every + 1:
        return
    newest = max(positions, default=0)
    behind = last + 1 - newest
    if final_record(run) is None and behind >= 2 * every + 1:
        yield Finding(
            cause="checkpoints-missing",
            what=f"no checkpoint since step {newest}, though save_every is {every:.0f}"
            if positions
            else f"no checkpoint is recorded, though save_every is {every:.0f}",
            where="checkpoints.jsonl",
            evidence=(
                f"steps logged: up to {last}",
                f"records: {len(run.checkpoints)}"
                + (f", at steps {', '.join(map(str, positions[-5:]))}" if positions else ""),
            ),
            fix="look for failed saves in the log; a crash now loses everything since then. Save"
            " by hand from the live client (save_state) if you can",
            then="python scripts/explain_error.py RUN/logs.log",
        )


def expiring(run: Run) -> Iterator[Finding]:
    """Nothing permanent is recorded, and the newest checkpoint is about to expire or has."""
    ttl = run.config.get("ttl_seconds")
    if isinstance(ttl, (int, float)) and not isinstance(ttl, bool) and ttl < thresholds.MIN_TTL:
        yield Finding(
            cause="ttl-too-short",
            what=f"ttl_seconds={ttl:g} is under {thresholds.MIN_TTL}",
            where="config.json",
            evidence=("the SDK documents 3600 seconds as the least that save_state takes",),
            fix="set ttl_seconds to at least 3600, or null to keep the checkpoints",
        )
        return
    if final_record(run) is not None or not run.checkpoints:
        return
    newest = run.checkpoints[-1]
    end = _end_of_life(run, newest, ttl)
    if end is None:
        return
    left = end - run.now
    if left > thresholds.EXPIRES_SOON:
        return
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(end))
    path = newest.get("state_path") or newest.get("sampler_path") or newest.get("name")
    evidence = (
        f"newest record: {path}",
        f"no final checkpoint (kept without end) among {len(run.checkpoints)} records",
    )
    if left <= 0:
        yield Finding(
            cause="checkpoints-expired",
            what=f"every checkpoint of this run has expired, the newest on {when}",
            where="checkpoints.jsonl",
            evidence=evidence,
            fix="ask the service whether it still has it (tinker checkpoint list); if not, the"
            " run must be trained again. Save with ttl_seconds=None what you want to keep",
        )
    else:
        yield Finding(
            cause="checkpoints-expiring",
            what=f"the newest checkpoint expires on {when}, in {left / 3600:.1f} hours",
            where="checkpoints.jsonl",
            evidence=evidence,
            fix="download or export it, or load it and save again with ttl_seconds=None, before"
            " then",
            then=f"python scripts/export_model.py --checkpoint {path} --base-model MODEL"
            " --output export/",
        )


def _end_of_life(run: Run, record: dict[str, Any], ttl: Any) -> float | None:
    """When a record's checkpoint expires; its own date, or the file's age plus the TTL."""
    for key in ("expires_at", "expiry"):
        value = record.get(key)
        if isinstance(value, (int, float)):
            return float(value)
        if isinstance(value, str):
            from datetime import UTC, datetime

            try:
                moment = datetime.fromisoformat(value)
            except ValueError:
                continue
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    own = record.get("ttl_seconds", ttl)
    if isinstance(own, (int, float)) and run.checkpoints_at is not None:
        return run.checkpoints_at + own
    return None


def _ttl_note(run: Run) -> Iterator[str]:
    ttl = run.setting("ttl_seconds")
    if ttl:
        yield f"periodic checkpoints live {ttl / 86400:.1f} days (ttl_seconds)"


def stopped(run: Run) -> Iterator[Finding]:
    """The plan is not done, and nothing was written for long."""
    import numpy as np

    if run.written_at is None or is_complete(run) is not False or final_record(run):
        return
    idle = run.now - run.written_at
    times = run.metrics.curve(names.STEP_TIME)
    step = float(np.median(times.finite().values)) if times is not None and len(times) else 0.0
    if idle < max(thresholds.STOPPED_AFTER, thresholds.STOPPED_STEPS * step):
        return
    progress = run.progress
    assert progress is not None
    share = 100 * float(progress.values[-1])
    alive = (
        f"process {run.holder} still holds the folder: it hangs"
        if run.holder
        else "whether the process lives is not known from the folder"
    )
    yield Finding(
        cause="run-stalled" if run.holder else "run-stopped-early",
        what=f"the metrics end at {share:.0f} % of the run, {idle / 3600:.1f} hours ago",
        where=f"step {int(progress.steps[-1])}",
        evidence=(alive, f"usual step: {step:.3g} s" if step else "no step times are logged"),
        fix="look for the process and at the end of its log. If it is gone, start the same"
        " command again with the same log_path: it resumes from the newest checkpoint. If it"
        " lives, see where it waits before you stop it",
        then="python scripts/task_dump.py attach PID",
        severity="problem" if run.holder else "warning",
    )
