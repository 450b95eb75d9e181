"""What a session's metrics say: its curves, and advice that follows from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tinkerlab.mcp.lab import plain_numbers
from tinkerlab.mcp.sessions import Session

TRAIN = {"sft": "train_mean_nll", "grpo": "env/all/reward/total"}
HELD_OUT = {
    "sft": ("test/nll",),
    "grpo": ("test/env/all/correct", "test/env/all/reward/total"),
}
MIXED = "env/all/by_group/frac_mixed"
CUT = "env/all/truncated"


def curve(rows: list[dict[str, Any]], *keys: str) -> list[tuple[int, float]]:
    """(step, value) of the first of ``keys`` that was logged."""
    key = next((k for k in keys if any(k in row for row in rows)), None)
    if key is None:
        return []
    return [
        (int(row["step"]), plain_numbers(row)[key]) for row in rows if key in plain_numbers(row)
    ]


def held_out(session: Session) -> list[tuple[int, float]]:
    return curve(session.rows, *HELD_OUT[session.method])


def advice(session: Session) -> list[str]:
    """What the last rows ask for, in a line each; the run analysis has more."""
    rows = session.rows
    told = []
    seen = held_out(session)
    if session.method == "sft" and len(seen) >= 3 and seen[-1][1] > min(v for _, v in seen) + 0.02:
        told.append("held-out NLL rises: overfitting; load the checkpoint before, or stop")
    last = next((row for row in reversed(rows) if TRAIN[session.method] in row), {})
    mixed, cut = last.get(MIXED), last.get(CUT)
    if mixed is not None and mixed < 0.1:
        reward = last.get(TRAIN["grpo"], 0.0)
        told.append(
            "almost no group has signal: "
            + ("tasks are too easy, or done" if reward > 0.5 else "too hard, or all replies fail")
        )
    if cut is not None and cut > 0.1:
        told.append(f"{cut:.0%} of the completions are cut at max_tokens: a longer limit")
    return told


def drawn(session: Session) -> bytes:
    """The session's curves as PNG."""
    import io

    from tinkerlab.pictures import COLOURS, picture

    png = io.BytesIO()
    with picture(8, 4.5, png) as figure:
        axes = figure.add_subplot()
        for label, points, line, colour in (
            (TRAIN[session.method], curve(session.rows, TRAIN[session.method]), "-", COLOURS[0]),
            ("held out", held_out(session), "o-", COLOURS[1]),
        ):
            if points:
                axes.plot(*zip(*points, strict=True), line, color=colour, label=label)
        axes.set_xlabel("step")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_title(f"{session.id} on {session.base_model}".replace("$", r"\$"))
        if axes.has_data():
            axes.legend()
    return png.getvalue()


def completions(session: Session, most: int = 4) -> list[dict[str, Any]]:
    """A few completions of the newest step, as the RL trainer keeps them."""
    from tinkerlab.runs import jsonl

    file: Path = session.run / "rollouts.jsonl"
    rows = jsonl.read(file) if file.is_file() else []
    rows = [row for row in rows if row.get("split") == "train"]
    newest = max((row.get("step", 0) for row in rows), default=0)
    kept = ("step", "prompt", "completion", "reward", "answer", "truncated")
    return [
        {key: row[key] for key in kept if key in row}
        for row in rows
        if row.get("step", 0) == newest
    ][:most]
