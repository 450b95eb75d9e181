"""The file that the cookbook's runner keeps of a benchmark, as items of ours.

It has a line per item, in the order in which replies came. An item whose request failed, or
ended after the time limit, is a line with an error; the runner counts it as answered wrongly and
never asks again. Here it has no outcome, and is dropped from the file before the next start.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkerlab.evaluation.benchmarks.loading import Loaded, as_text
from tinkerlab.evaluation.suite_results import SuiteItem
from tinkerlab.runs import jsonl

if TYPE_CHECKING:
    from tinker_cookbook.eval.benchmarks import BenchmarkConfig

NO_VERDICT = "the judge gave no verdict"


def file_of(save_dir: Path, benchmark: str) -> Path:
    """Where the runner writes."""
    return save_dir / benchmark / "trajectories.jsonl"


def forget_failures(file: Path) -> None:
    """Drop items without an outcome, and half a last line, so that they are asked again."""
    if not file.is_file():
        return
    jsonl.repair_tail(file)
    rows = jsonl.read(file)
    good = [row for row in rows if error_of(row) is None]
    if len(good) != len(rows):
        jsonl.rewrite(file, good)


def count(file: Path) -> int:
    """Items that are in the file so far."""
    return file.read_bytes().count(b"\n") if file.is_file() else 0


def error_of(row: Mapping[str, Any]) -> str | None:
    """Why an item has no outcome, or None.

    A judge's reply that holds no score is logged as -1, and would count as a bad answer.
    """
    if row.get("error") is not None:
        return str(row["error"])
    logs = row.get("logs") or {}
    return NO_VERDICT if "judge_output" in logs and logs.get("score") == -1 else None


def read_items(file: Path, loaded: Loaded, settings: BenchmarkConfig) -> list[SuiteItem]:
    """The items in the benchmark's own order, the same for every model.

    The question is the first turn as the model got it, special tokens included: it is what makes
    two items the same. Lines of the file that are of no item of ``loaded`` are passed over.
    """
    rows = {
        str(row.get("example_id") or row["idx"]): row
        for row in (jsonl.read(file) if file.is_file() else [])
    }
    return [
        _item(name, rows[name], answer, None if loaded.tells_cut else settings)
        for name, answer in loaded.answers.items()
        if name in rows
    ]


def _item(
    name: str, row: Mapping[str, Any], answer: str, limits: BenchmarkConfig | None
) -> SuiteItem:
    """Args: limits: where only a reply's length says that it was cut, the lengths allowed."""
    turns = row.get("turns") or []
    logs, metrics = row.get("logs") or {}, row.get("metrics") or {}
    replies = [turn for turn in turns if turn["role"] == "assistant"]
    reply = replies[-1] if replies else {"content": "", "token_count": 0}
    cut = bool(metrics.get("max_tokens_reached") or metrics.get("context_overflow"))
    if limits is not None:
        together = turns[0]["token_count"] + reply["token_count"] if turns else 0
        window = limits.context_window
        cut = reply["token_count"] >= limits.max_tokens or bool(window and together >= window)
    return SuiteItem(
        id=name,
        question=str(turns[0]["content"]) if turns else "",
        ground_truth=answer,
        completion=str(reply["content"]),
        # The cookbook's own count of right items, in every benchmark it has.
        correct=float(row.get("reward") or 0.0) > 0,
        extracted=as_text(logs.get("extracted")) or None,
        error=error_of(row),
        truncated=cut,
        unparsed=bool(metrics.get("parse_error")),
    )
