"""The data of a supervised run, read, checked, split and rendered as its config says."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinkerlab.cli import say
from tinkerlab.training.supervised_config import SupervisedConfig

if TYPE_CHECKING:
    import tinker

    from tinkerlab.data import DataReport, Row


@dataclass(frozen=True)
class SupervisedData:
    """Rows that passed the check, and how to render them."""

    train: Sequence[Row]
    held_out: Sequence[Row]
    renderer: Any
    renderer_name: str
    tokenizer: Any
    report: DataReport | None
    config: SupervisedConfig

    def datum(self, row: Row) -> tinker.Datum:
        """The training example of a row; its weights sum to 1."""
        from tinkerlab.data import build_datum

        return build_datum(
            row,
            self.renderer,
            self.config.max_seq_len,
            self.config.train_on_what,
            reduction="mean",
        )

    def train_datum(self, index: int) -> tinker.Datum:
        """Rendered when its step comes: all of a big data set at once would fill the memory."""
        return self.datum(self.train[index])

    def held_out_datums(self) -> list[tinker.Datum]:
        return [self.datum(row) for row in self.held_out]

    def report_document(self) -> Any:
        """What the data check found, for the run's folder."""
        return self.report.to_json() if self.report else {}

    def held_out_documents(self) -> list[dict[str, Any]]:
        """The held-out rows as JSON Lines rows, to be scored again by an evaluation."""
        return [_document(row) for row in self.held_out]


def prepare(config: SupervisedConfig) -> SupervisedData:
    """Read, split and check the data, and print what was found on stderr.

    Raises:
        InputError: unreadable or bad rows, no usable tokenizer or renderer, or a problem that
            stands against training (contamination, nothing to train on, ids over the
            vocabulary, ...).
    """
    from tinkerlab.data import (
        check_dataset,
        load_rows,
        load_tokenizer,
        make_splits,
        model_limits,
        resolve_renderer,
        statistics_lines,
    )

    files = [config.train_file] + ([config.val_file] if config.val_file else [])
    loaded = [load_rows(file, config.skip_bad_rows, config.train_on_what) for file in files]
    for data in loaded:
        for line in (data.summary, *data.notes):
            say(line)
    splits = make_splits(
        loaded[0].rows,
        loaded[1].rows if config.val_file else None,
        val_fraction=config.val_fraction,
        max_train_rows=config.max_train_rows,
        max_val_rows=config.max_val_rows,
        seed=config.seed,
    )
    tokenizer = load_tokenizer(config.base_model)
    resolved = resolve_renderer(config.base_model, tokenizer, config.renderer)
    report = check_dataset(
        splits,
        resolved,
        tokenizer,
        max_length=config.max_seq_len,
        train_on_what=config.train_on_what,
        reduction="mean",
        limits=model_limits(config.base_model),
        allow_contamination=config.allow_contamination,
        skip_bad_rows=config.skip_bad_rows,
    )
    for line in (*splits.notes, f"renderer {resolved.name}: {resolved.reason}"):
        say(line)
    for line in statistics_lines(report):
        say(line)
    for row in report.dropped[:20]:
        say(f"left out: {row}")
    if len(report.dropped) > 20:
        say(f"left out: {len(report.dropped) - 20} more, see data_report.json")
    for preview in report.preview:
        marked = preview.coloured() if sys.stderr.isatty() else preview.plain()
        say(f"--- {preview.place} ({preview.label}), trained tokens marked:\n{marked}")
    for warning in report.warnings:
        say("warning: " + "\n".join(warning.lines()))
    report.refuse_problems()
    say(report.verdict)
    return SupervisedData(
        train=report.train,
        held_out=report.val,
        renderer=resolved.renderer,
        renderer_name=resolved.name,
        tokenizer=tokenizer,
        report=report,
        config=config,
    )


def fingerprint(rows: Sequence[Row]) -> str:
    """Hex SHA-256 of the rows in order: the same data, wherever and however the file lies."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(_document(row), sort_keys=True, ensure_ascii=False).encode())
        digest.update(b"\n")
    return digest.hexdigest()


def _document(row: Row) -> dict[str, Any]:
    document: dict[str, Any] = {"messages": list(row.messages)}
    if row.tools:
        document["tools"] = list(row.tools)
    return document
