"""Which items are held out, and how they are scored: as the run that trained on the rest did.

A run's folder holds ``held_out.jsonl``, the rows that it never trained on, and ``config.json``,
which says how it rendered them. Scoring the same rows in the same way makes the trainer's
``test/nll`` and the evaluation's figure one and the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinkerlab.errors import InputError
from tinkerlab.evaluation.nll import ScoredItem
from tinkerlab.runs import checkpoints
from tinkerlab.runs.folder import RunFolder


@dataclass(frozen=True)
class Rendering:
    """What decides an item's tokens and which of them are scored."""

    renderer: str
    train_on_what: str
    max_seq_len: int


@dataclass(frozen=True)
class TrainedRun:
    """A finished run as its folder tells it.

    Attributes:
        sampler_path: the newest checkpoint to sample from.
        source: the file that the held-out rows came from.
    """

    folder: Path
    name: str
    base_model: str
    sampler_path: str
    held_out_file: Path
    source: str
    seed: int
    rendering: Rendering
    wandb_url: str | None


def read_run(path: Path) -> TrainedRun:
    """A run's folder, ready to be evaluated.

    Raises:
        InputError: no such folder, no config, no held-out rows, or no checkpoint to sample from.
    """
    folder = RunFolder(path)
    if not path.is_dir():
        raise InputError(f"--run {path}: no such folder; give the log_path of a training run")
    config = folder.read_config()
    if config is None:
        raise InputError(f"--run {path}: no config.json in it; give the log_path of a training run")
    if not folder.held_out_file.is_file() or not folder.held_out_file.stat().st_size:
        raise InputError(f"--run {path}: it held no rows out; give an evaluation file with --data")
    newest = next(
        (row for row in reversed(checkpoints.read_rows(path)) if row.get("sampler_path")), None
    )
    if newest is None:
        raise InputError(
            f"--run {path}: no checkpoint to sample from in {checkpoints.FILE_NAME}; let the run"
            " finish, or name one with --checkpoint"
        )
    resolved = config.get("resolved") or {}
    try:
        return TrainedRun(
            folder=path,
            name=str(config.get("run_name") or path.resolve().name),
            base_model=str(config["base_model"]),
            sampler_path=str(newest["sampler_path"]),
            held_out_file=folder.held_out_file,
            source=str(config.get("val_file") or config["train_file"]),
            seed=int(config.get("seed") or 0),
            rendering=Rendering(
                renderer=str(resolved.get("renderer") or config["renderer"]),
                train_on_what=str(config["train_on_what"]),
                max_seq_len=int(config["max_seq_len"]),
            ),
            wandb_url=config.get("wandb_url"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{folder.config_file}: not a config of sl_trainer.py ({error})") from None


def build_items(
    rows: Iterable[Any], renderer: Any, tokenizer: Any, rendering: Rendering
) -> list[ScoredItem]:
    """Render rows to scored items, numbered by their place.

    An item is a whole conversation; scored are the tokens that training would put weight on.
    With several scored turns, ``completion`` is the text from the first of them to the end.

    Raises:
        InputError: a row of which no token is scored, as after truncation of a long prompt.
    """
    from tinkerlab.data import RowError, build_datum

    items = []
    for index, row in enumerate(rows):
        try:
            datum = build_datum(
                row,
                renderer,
                max_length=rendering.max_seq_len,
                train_on_what=rendering.train_on_what,
                reduction="none",
            )
        except RowError as error:
            raise InputError(f"held-out line {row.line}: {error}") from None
        items.append(item_of_datum(index, datum, tokenizer))
    return items


def item_of_datum(index: int, datum: Any, tokenizer: Any) -> ScoredItem:
    """The item that a training example scores.

    A datum's input lacks the last token and its targets the first; the whole sequence has
    both, so the weight of target ``i`` is that of token ``i + 1``.

    Raises:
        InputError: the example weighs no token.
    """
    targets = [int(token) for token in datum.loss_fn_inputs["target_tokens"].to_numpy()]
    weights = datum.loss_fn_inputs["weights"].to_numpy()
    tokens = (*datum.model_input.to_ints(), targets[-1])
    scored = tuple(place + 1 for place, weight in enumerate(weights) if weight > 0)
    if not scored:
        raise InputError(
            f"item {index}: none of its tokens is scored; raise max_seq_len, or leave the row out"
        )
    start = scored[0]
    return ScoredItem(
        index=index,
        prompt=str(tokenizer.decode(list(tokens[:start]))),
        completion=str(tokenizer.decode(list(tokens[start:]))),
        tokens=tokens,
        scored=scored,
    )
