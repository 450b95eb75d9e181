"""Files of a run folder: whole lines, torn tails, atomic replacement."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkerlab.errors import InputError
from tinkerlab.runs import jsonl


def test_reads_back_what_was_appended(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [{"step": 0, "text": "naïve\nline"}, {"step": 1, "x": 1.5}]
    for row in rows:
        jsonl.append(file, row)
    assert jsonl.read(file) == rows
    assert file.read_text(encoding="utf-8").count("\n") == 2


def test_a_missing_file_has_no_rows(tmp_path: Path) -> None:
    assert jsonl.read(tmp_path / "none.jsonl") == []


def test_keeps_nan_as_evidence(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    jsonl.append(file, {"train_mean_nll": math.nan})
    assert math.isnan(jsonl.read(file)[0]["train_mean_nll"])


@given(cut=st.integers(min_value=1, max_value=40))
def test_any_cut_of_the_last_line_loses_only_that_line(tmp_path_factory, cut: int) -> None:
    file = tmp_path_factory.mktemp("cut") / "rows.jsonl"
    whole = b'{"step": 0, "loss": 1.25}\n'
    last = b'{"step": 1, "name": "\xc3\xa9\xc3\xa8", "loss": 1.5}\n'
    file.write_bytes(whole + last[:-cut])
    expected = [{"step": 0, "loss": 1.25}]
    if cut == 1:  # only the newline is missing: the row itself is complete
        expected.append(json.loads(last))
    assert jsonl.read(file) == expected
    jsonl.repair_tail(file)
    jsonl.append(file, {"step": 2})
    assert jsonl.read(file) == [*expected, {"step": 2}]


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"step": 0}\n{"st\n{"step": 2}\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"rows\.jsonl:2: not a JSON object"):
        jsonl.read(file)


def test_a_kill_during_a_rewrite_leaves_the_old_file(tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "rows.jsonl"
    jsonl.append(file, {"step": 0})

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        jsonl.rewrite(file, [])
    assert jsonl.read(file) == [{"step": 0}]
