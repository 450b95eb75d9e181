"""How a run ended, in one document and in one line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tinkerlab.runs.checkpoints import CheckpointRecord
from tinkerlab.runs.folder import RunFolder

COMPLETE = ("complete", "already complete")


def summarize(
    folder: RunFolder,
    rows: Sequence[Mapping[str, Any]],
    last: CheckpointRecord | None,
    figures: Mapping[str, Any],
    *,
    status: str,
    training_run: str | None,
    wandb_url: str | None = None,
) -> dict[str, Any]:
    """The result of a run for ``--json``: status, figures, where the weights are.

    Args:
        figures: what this kind of training is about, such as its first and last losses.
        status: ``complete``, ``already complete``, ``paused`` or ``interrupted``.
    """
    return {
        "status": status,
        "log_path": str(folder.path),
        "training_run": training_run,
        "steps": last.step if last else 0,
        **figures,
        "seconds": round(sum(row.get("time/total", 0.0) for row in rows), 3),
        "state_path": last.state_path if last else None,
        "sampler_path": last.sampler_path if last else None,
        "wandb_url": wandb_url,
    }


def first_and_last(rows: Sequence[Mapping[str, Any]], key: str, name: str) -> dict[str, Any]:
    """``{name}_first`` and ``{name}_last`` of a metric; None where it has no finite value."""
    values = [row[key] for row in rows if key in row]
    return {
        f"{name}_first": _finite(values[0]) if values else None,
        f"{name}_last": _finite(values[-1]) if values else None,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def sentence(summary: Mapping[str, Any], name: str = "held_out_nll", label: str = "NLL") -> str:
    """The summary for people.

    Args:
        name, label: the held-out figure, as ``first_and_last`` named it, and what to call it.
    """
    parts = [f"{summary['status']} after {summary['steps']} steps"]
    first, last = summary[f"{name}_first"], summary[f"{name}_last"]
    if first is not None and last is not None:
        parts.append(f"held-out {label} {first:.4f} -> {last:.4f}")
    if summary["sampler_path"]:
        parts.append(f"weights: {summary['sampler_path']}")
    parts.append(f"logs: {summary['log_path']}")
    return "; ".join(parts)
