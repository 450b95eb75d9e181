"""All checks over one run, as a diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tinkerlab.diagnosis.findings import Diagnosis, Finding
from tinkerlab.diagnosis.run_analysis import (
    grading,
    losses,
    names,
    rates,
    reinforcement,
    resumes,
    saved,
    timing,
)
from tinkerlab.diagnosis.run_analysis.attempts import checkpoint_step, is_final, take_apart
from tinkerlab.diagnosis.run_analysis.run import Run

CHECKS: tuple[Callable[[Run], Iterator[Finding]], ...] = (
    losses.check,
    grading.check,
    resumes.check,
    rates.check,
    reinforcement.check,
    saved.check,
    timing.check,
)
# Causes before their effects: what stands first is the verdict.
FIRST = (
    "runs-interleaved",
    "lr-too-high",
    "loss-not-finite",
    "loss-diverged",
    "replies-truncated",
    "reward-up-eval-down",
    "reward-groups-all-equal",
)


def analyze(run: Run) -> Diagnosis:
    """What is wrong with a run that has been read."""
    # Curves that join points of several runs show jumps that none of them made.
    checks = (resumes.check, grading.check) if resumes.is_interleaved(run) else CHECKS
    findings = [finding for check in checks for finding in check(run)]
    findings.sort(key=lambda f: FIRST.index(f.cause) if f.cause in FIRST else len(FIRST))
    findings.sort(key=lambda f: f.severity != "problem")
    reader = run.metrics_reader
    if reader is not None and reader.bad_count:
        findings.append(_broken_lines(run))
    return Diagnosis(
        healthy="nothing is wrong with this run as far as it goes",
        checked={
            "steps": len(run.metrics.training_rows()),
            "metrics": len(run.metrics.keys),
            "checkpoints": len(run.checkpoints),
            "rollouts": run.rollouts.count,
            "evaluation_examples": sum(e.count for e in run.evaluations.values()),
        },
        findings=findings,
        notes=list(notes(run)),
        details={"run": str(run.path), "state": run.progress_line()},
    )


def _broken_lines(run: Run) -> Finding:
    reader = run.metrics_reader
    assert reader is not None
    return Finding(
        cause="metrics-lines-broken",
        what=f"{reader.bad_count} line{'s' if reader.bad_count > 1 else ''} of the metrics file"
        " cannot be read",
        where=f"{reader.path.name}:{reader.bad[0]}",
        evidence=(f"lines {', '.join(map(str, reader.bad))}: no JSON objects",),
        fix="a writer was killed in mid-line and another one went on in the same line: the"
        " steps of these lines are lost to every plot; nothing else is wrong with them",
        severity="warning",
    )


def notes(run: Run) -> Iterator[str]:
    """Facts that accuse nobody."""
    if run.metrics_reader is not None and run.metrics_reader.torn:
        yield "the last line is half written: normal in a live run, it is left out"
    if run.holder:
        yield f"process {run.holder} is training in this folder"
    sides = losses.weights_per_example(run)
    if sides is not None and len(sides[0]) and (sides[0] == sides[0][0]).all():
        yield (
            "loss weights sum to 1 per example (get_lr is meant for this scale)"
            if sides[0][0]
            else "loss weights count tokens, so the summed loss and its gradients are larger than"
            " with weights that sum to 1 per example: compare only runs of the same scale, and"
            " take mean NLL per token for that"
        )
    attempts = take_apart(run)
    if len(attempts.listed) > 1 and not attempts.interleaved:
        shown = ", ".join(f"{a.first}-{a.last}" for a in attempts.listed[:6])
        yield f"{len(attempts.listed)} attempts in one file (steps {shown}); curves use the last"
    if not run.is_rl and run.metrics.first(names.TRAIN_LOSS) == "train_mean_nll":
        label = next((row for row in run.checkpoints if _label_in_flight(run, row)), None)
        if label is not None:
            yield (
                f"checkpoint {label['name']} is labelled with the batch that was in flight when it"
                " was saved (tinker-cookbook's supervised loop): a resume from it trains that"
                " batch, and those submitted ahead, twice"
            )


def _label_in_flight(run: Run, record: dict) -> bool:
    """Whether a record is one of tinker-cookbook's supervised loop, labelled one short."""
    name = record.get("name")
    return (
        not is_final(record)
        and "step" not in record
        and isinstance(name, str)
        and name.isdigit()
        and checkpoint_step(run, record, None) == int(name)
    )
