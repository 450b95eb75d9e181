"""What a cell's run folder shows: is every part of the training there, and is it sound?"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tinkerlab.cli import EXIT_FOUND, EXIT_OK
from tinkerlab.errors import InputError
from tinkerlab.runs import checkpoints, metrics

Status = Literal["passed", "failed", "no signal", "interrupted"]

# tinker-cookbook's names, as sl_trainer.py and rl_trainer.py log them at every step.
LOSS = {"sft": "train_mean_nll", "grpo": "optim/loss"}
EXPECTED = {
    "sft": ("train_mean_nll", "num_loss_tokens", "grad_norm:mean", "time/total"),
    "grpo": (
        "optim/loss",
        "env/all/reward/total",
        "env/all/by_group/frac_mixed",
        "optim/kl_sample_train_v2",
        "optim/entropy",
        "grad_norm:mean",
        "time/total",
    ),
}
MIXED = "env/all/by_group/frac_mixed"
PREFLIGHT_FILE = "preflight.json"  # as training/rl/run.py names it


@dataclass
class Judgement:
    """What is known of one cell.

    Attributes:
        checks: each requirement, and whether it holds; in the order of a run.
        reason: why it did not pass.
        saved: the final checkpoint's paths at the service, which keeps them.
    """

    status: Status
    reason: str = ""
    checks: dict[str, bool] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    saved: list[str] = field(default_factory=list)


def judge_training(method: str, run: Path, code: int, said: str, steps: int) -> Judgement:
    """Judge a run after its trainer has ended.

    Args:
        code: the trainer's exit code.
        said: its last words, for a run that failed.
        steps: how many it had to do.
    """
    if method == "grpo" and code == EXIT_FOUND:
        refusal = _refused(run)
        if refusal:
            return Judgement("no signal", refusal, {"finished": False})
    if code != EXIT_OK:
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return Judgement("failed", f"{how}; {said}" if said else how, {"finished": False})
    try:
        rows, saved = metrics.read(run), checkpoints.read(run)
    except InputError as error:
        return Judgement("failed", str(error), {"finished": True, "metrics": False})
    missing = _missing(rows, EXPECTED[method], steps)
    losses = [row[LOSS[method]] for row in rows if LOSS[method] in row]
    finite = bool(losses) and all(_finite(value) for value in losses)
    last = saved[-1] if saved else None
    recorded = last is not None and last.final and last.step == steps
    usable = recorded and bool(last and last.state_path and last.sampler_path)
    found = Judgement(
        "passed",
        checks={
            "finished": True,
            "metrics": not missing,
            "loss_finite": finite,
            "checkpoint": usable,
        },
        figures=_figures(method, rows),
        saved=[path for path in (last.state_path, last.sampler_path) if path] if last else [],
    )
    reasons = {
        "metrics": missing,
        "loss_finite": f"{LOSS[method]} is not finite: {losses}",
        "checkpoint": f"no final checkpoint of step {steps} in checkpoints.jsonl",
    }
    broken = [reasons[name] for name, holds in found.checks.items() if not holds]
    if broken:
        found.status, found.reason = "failed", "; ".join(broken)
    elif method == "grpo" and not any(row.get(MIXED, 0) > 0 for row in rows):
        found.status = "no signal"
        found.reason = f"the rewards of every group are equal in all {steps} steps"
    return found


def judge_sampling(found: Judgement, code: int, printed: str, said: str) -> str:
    """Add to a judgement whether the checkpoint could be sampled from; the reply.

    Args:
        code, printed, said: exit code, stdout and last words of ``checkpoint_compare.py --json``.
    """
    reply, why = _reply(code, printed, said)
    found.checks["sampled"] = not why
    if why:
        found.status = "failed"
        found.reason = f"can't sample from the checkpoint: {why}"
    return reply


def _reply(code: int, printed: str, said: str) -> tuple[str, str]:
    """(the trained model's reply, "") or ("", why there is none)."""
    if code != EXIT_OK:
        return "", f"exit code {code}" + (f"; {said}" if said else "")
    try:
        replies = json.loads(printed)["prompts"][0]["replies"]
        trained = [found[0] for name, found in replies.items() if name != "base"]
        text, tokens = trained[0]["text"], trained[0]["tokens"]
    except (ValueError, KeyError, IndexError, TypeError):
        return "", "no reply in the answer of checkpoint_compare.py"
    return (str(text), "") if tokens > 0 else ("", "the reply has no tokens")


def _refused(run: Path) -> str:
    """Why the pre-flight found no signal; "" where it found some, or failed in another way."""
    try:
        found = json.loads((run / PREFLIGHT_FILE).read_text(encoding="utf-8"))
        signal, errors = found["groups_with_signal"], found["grader_errors"]
        message = str(found["message"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return message if signal == 0 and errors == 0 else ""


def _missing(rows: Sequence[Mapping[str, Any]], expected: Sequence[str], steps: int) -> str:
    """What metrics.jsonl lacks, in one phrase; "" where it has all."""
    if [row.get("step") for row in rows] != list(range(steps)):
        return f"metrics.jsonl has {len(rows)} rows for {steps} steps"
    absent = [key for key in expected if any(key not in row for row in rows)]
    return f"metrics.jsonl lacks {', '.join(absent)}" if absent else ""


def _figures(method: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    keys = (LOSS[method], "env/all/reward/total", MIXED, "env/all/truncated")
    return {
        f"{key} {place}": rows[index][key]
        for place, index in (("first", 0), ("last", -1))
        for key in keys
        if rows and _finite(rows[index].get(key))
    }


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
