"""How a run ended, in one document and in one line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tinkerlab.runs.checkpoints import CheckpointRecord
from tinkerlab.runs.folder import RunFolder


def summarize(
    folder: RunFolder,
    rows: Sequence[dict[str, Any]],
    last: CheckpointRecord | None,
    *,
    status: str,
    training_run: str | None,
    wandb_url: str | None = None,
) -> dict[str, Any]:
    """The result of a run for ``--json``: status, losses, where the weights are.

    Args:
        status: ``complete``, ``already complete`` or ``interrupted``.
    """
    losses = [row["train_mean_nll"] for row in rows if "train_mean_nll" in row]
    held_out = [row["test/nll"] for row in rows if "test/nll" in row]
    return {
        "status": status,
        "log_path": str(folder.path),
        "training_run": training_run,
        "steps": last.step if last else 0,
        "train_nll_first": _finite(losses[0]) if losses else None,
        "train_nll_last": _finite(losses[-1]) if losses else None,
        "held_out_nll_first": _finite(held_out[0]) if held_out else None,
        "held_out_nll_last": _finite(held_out[-1]) if held_out else None,
        "seconds": round(sum(row.get("time/total", 0.0) for row in rows), 3),
        "state_path": last.state_path if last else None,
        "sampler_path": last.sampler_path if last else None,
        "wandb_url": wandb_url,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def sentence(summary: dict[str, Any]) -> str:
    """The summary for people."""
    parts = [f"{summary['status']} after {summary['steps']} steps"]
    if summary["held_out_nll_first"] is not None and summary["held_out_nll_last"] is not None:
        parts.append(
            f"held-out NLL {summary['held_out_nll_first']:.4f} -> {summary['held_out_nll_last']:.4f}"
        )
    if summary["sampler_path"]:
        parts.append(f"weights: {summary['sampler_path']}")
    parts.append(f"logs: {summary['log_path']}")
    return "; ".join(parts)
