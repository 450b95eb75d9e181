"""Which folders are runs, and what they are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinkerlab.errors import InputError
from tinkerlab.watching import board as board_module
from tinkerlab.watching.board import Board
from tinkerlab.watching.discovery import find

ROW = '{"step": 0, "train_mean_nll": 1.0}\n'


def put(file: Path, text: str = "") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_runs_of_every_origin_below_a_folder(tmp_path: Path) -> None:
    put(tmp_path / "sft" / "metrics.jsonl", ROW)
    put(tmp_path / "sft" / "old" / "metrics.jsonl", ROW)  # inside a run: not another one
    put(tmp_path / "begun" / ".lock", "1")
    put(tmp_path / "cookbook" / "config.json", "{}")
    put(tmp_path / "cookbook" / "logs.log")
    put(tmp_path / "sweep" / "sweep.json", "{}")
    put(tmp_path / "sweep" / ".lock", "1")
    put(tmp_path / "sweep" / "lr-1" / "output.log")
    put(tmp_path / "other" / "config.json", "{}")
    put(tmp_path / ".hidden" / "metrics.jsonl", ROW)
    put(tmp_path / "a" / "b" / "c" / "d" / "e" / "metrics.jsonl", ROW)
    names = [place.name for place in find([tmp_path])]
    assert sorted(names) == ["begun", "cookbook", "sft", "sweep/lr-1"]


def test_each_run_once_and_names_that_differ(tmp_path: Path) -> None:
    for parent in ("a", "b"):
        put(tmp_path / parent / "run" / "metrics.jsonl", ROW)
    one, two = tmp_path / "a" / "run", tmp_path / "b" / "run"
    assert [place.name for place in find([one, one, tmp_path / "a"])] == ["run"]
    assert [place.name for place in find([one, two])] == [str(one), str(two)]
    (file,) = find([one / "metrics.jsonl"])
    assert file.name == "run" and file.path.is_file()


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere: no such folder or file; name a run's folder"):
        find([tmp_path / "nowhere"])


def test_new_runs_join(tmp_path: Path) -> None:
    board = Board([tmp_path])
    assert board.look() == []
    put(tmp_path / "one" / "metrics.jsonl", ROW)
    assert [status.name for status in board.look()] == ["one"]
    put(tmp_path / "two" / ".lock", "")
    assert [status.name for status in board.look()] == ["one", "two"]


def test_a_run_that_is_removed_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board_module, "UNREADABLE_AFTER", 0.0)
    file = put(tmp_path / "one" / "metrics.jsonl", ROW)
    board = Board([tmp_path / "one"])
    board.look()
    file.unlink()
    file.parent.rmdir()
    assert [status.state for status in board.look()] == ["unreadable"]
