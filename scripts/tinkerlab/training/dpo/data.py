"""The pairs of a DPO run, read, checked, split and rendered as its config says."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinkerlab.cli import say
from tinkerlab.data.preference_check import PairReport, check_pairs
from tinkerlab.data.preferences import LoadedPairs, PreferencePair, scan_pairs, split_pairs
from tinkerlab.training.dpo.config import DPOConfig

if TYPE_CHECKING:
    import tinker

SIDES = ("chosen", "rejected")


@dataclass(frozen=True)
class DPOData:
    """Pairs that passed the check, and how to render them."""

    train: Sequence[PreferencePair]
    held_out: Sequence[PreferencePair]
    renderer: Any
    renderer_name: str
    tokenizer: Any
    report: PairReport
    config: DPOConfig

    def datums(self, pairs: Sequence[PreferencePair]) -> list[tinker.Datum]:
        """Chosen and rejected side of each pair in turn, as tinker-cookbook's DPO has them.

        The weights are 1 on the reply's tokens and 0 elsewhere: DPO compares summed
        log-probabilities, so nothing is divided by a reply's length.
        """
        from tinkerlab.data import build_datum

        return [
            build_datum(
                pair.conversation(side),
                self.renderer,
                self.config.max_seq_len,
                "last_assistant_message",
                reduction="none",
            )
            for pair in pairs
            for side in SIDES
        ]

    def held_out_documents(self) -> list[dict[str, Any]]:
        """The held-out pairs as rows of a preference file."""
        return [pair.document() for pair in self.held_out]


def prepare(config: DPOConfig) -> DPOData:
    """Load, split and check the pairs, and print what was found on stderr.

    Raises:
        InputError: unreadable or bad rows, no usable tokenizer or renderer, or a problem that
            stands against training (identical sides, contamination, replies that get cut, ...).
    """
    from tinkerlab.data import load_tokenizer, model_limits, resolve_renderer

    train, val = _load(config)
    held_out = val.pairs if val else None
    training, held_out, notes = split_pairs(
        train.pairs,
        held_out,
        val_fraction=config.val_fraction,
        max_train_rows=config.max_train_rows,
        max_val_rows=config.max_val_rows,
        seed=config.seed,
    )
    tokenizer = load_tokenizer(config.base_model)
    resolved = resolve_renderer(config.base_model, tokenizer, config.renderer)
    for line in (*notes, f"renderer {resolved.name}: {resolved.reason}"):
        say(line)
    for text in resolved.warnings:
        say(f"warning: {text}")
    report = check_pairs(
        training,
        held_out,
        resolved.renderer,
        tokenizer,
        max_length=config.max_seq_len,
        limits=model_limits(config.base_model),
        allow_contamination=config.allow_contamination,
        skip_bad_rows=config.skip_bad_rows,
    )
    for line in report.lines():
        say(line)
    report.refuse_problems()
    say(report.verdict)
    return DPOData(
        train=report.train,
        held_out=report.val,
        renderer=resolved.renderer,
        renderer_name=resolved.name,
        tokenizer=tokenizer,
        report=report,
        config=config,
    )


def _load(config: DPOConfig) -> tuple[LoadedPairs, LoadedPairs | None]:
    """Training pairs, and held-out pairs where they have a source of their own."""
    if config.comparison_builder:
        from tinkerlab.training.dpo.builders import load_comparisons

        train, val = load_comparisons(
            config.comparison_builder,
            config.comparison_builder_args or {},
            config.max_train_rows,
            config.max_val_rows,
        )
    else:
        assert config.train_file is not None  # the config's own check
        train, val = scan_pairs(config.train_file), None
    if config.val_file:
        val = scan_pairs(config.val_file)
    for loaded in filter(None, (train, val)):
        loaded.refuse_bad(config.skip_bad_rows)
        for line in (loaded.summary, *loaded.notes):
            say(line)
    return train, val


def fingerprint(pairs: Sequence[PreferencePair]) -> str:
    """Hex SHA-256 of the pairs in order: the same data, wherever and however the file lies."""
    digest = hashlib.sha256()
    for pair in pairs:
        digest.update(pair.key().encode())
        digest.update(b"\n")
    return digest.hexdigest()
