"""Which checkpoints a comparison shows, and what each column is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tinkerlab.errors import InputError
from tinkerlab.evaluation.sft import check_checkpoint_path
from tinkerlab.runs import checkpoints

BASE = "base"


def choose(
    folder: Path | None,
    named: Sequence[str] = (),
    *,
    every: bool = False,
    say: Callable[[str], None] = lambda note: None,
) -> dict[str, str]:
    """Column name -> sampler path: a run's newest checkpoint, every one of it, or those named.

    Args:
        folder: of the run; None without one.
        named: sampler paths, or names of the run's own checkpoints, shown after the others.
        every: all of the run's, by the updates that they hold, besides those named.
        say: takes a line for each checkpoint of the run that ``every`` leaves out.

    Raises:
        InputError: one that is not there or cannot be sampled from.
    """
    own = _of_run(folder) if folder else []
    picked = _in_training_order(folder, say) if folder and every else []
    if not named and not every:
        picked = own[-1:]
    picked += [_named(text, own, folder) for text in named]

    names: dict[str, str] = {}
    for name, path in picked:
        check_checkpoint_path(path)
        if path in names.values():
            continue
        free = (n for n in (name, short_name(path), path) if n and n not in (BASE, *names))
        names[next(free)] = path
    return names


def short_name(path: str) -> str:
    """``RUN/NAME`` of a sampler path, with the first eight letters of the run's id."""
    run, *_, name = path.removeprefix("tinker://").split("/")
    return f"{run[:8]}/{name}"


def _of_run(folder: Path) -> list[tuple[str | None, str]]:
    """(name, sampler path) of the records that have one, as they were written."""
    return [
        (str(row["name"]) if row.get("name") else None, str(row["sampler_path"]))
        for row in checkpoints.read_rows(folder)
        if row.get("sampler_path")
    ]


def _in_training_order(folder: Path, say: Callable[[str], None]) -> list[tuple[str | None, str]]:
    from tinkerlab.evaluation.selection.checkpoints import checkpoints_of, read_run

    found, left_out = checkpoints_of(read_run(folder))
    left_out += [f"{c.name}: no sampler_path" for c in found if not c.sampler_path]
    for line in left_out:
        say(f"left out: {line}")
    return [(c.name, c.sampler_path) for c in found if c.sampler_path]


def _named(
    text: str, own: Sequence[tuple[str | None, str]], folder: Path | None
) -> tuple[str | None, str]:
    if text.startswith("tinker://") or folder is None:
        return next((name for name, path in own if path == text), None), text
    for name, path in reversed(own):
        if name == text:
            return name, path
    there = ", ".join(name for name, _ in own if name) or "none"
    raise InputError(
        f"--checkpoint {text}: no such checkpoint in {folder / checkpoints.FILE_NAME}"
        f" (there are: {there}); give one of them, or a tinker:// path"
    )
