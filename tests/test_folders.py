"""A place that can't be written is one line and exit code 2, whichever script is given it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from repository import ROOT

from tinkerlab.errors import InputError
from tinkerlab.evaluation.results import write_whole
from tinkerlab.folders import make_folder, require_writable


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_text("kept")
    return path


def test_a_folder_is_made_with_its_parents_and_kept(tmp_path: Path) -> None:
    make_folder(tmp_path / "a/b")
    (tmp_path / "a/b/mine").touch()
    make_folder(tmp_path / "a/b")
    assert (tmp_path / "a/b/mine").exists()


@pytest.mark.parametrize("refuse", [make_folder, require_writable])
def test_a_file_in_the_way_is_named_and_kept(file: Path, refuse) -> None:
    for place in (file, file / "below/it"):
        with pytest.raises(InputError, match=f"--store {place}: .*choose another"):
            refuse(place, "--store")
    assert file.read_text() == "kept"


def test_a_folder_without_permission_is_refused_before_the_work(tmp_path, monkeypatch) -> None:
    """The answer of the system is put in its place: the superuser may write anywhere."""
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    with pytest.raises(InputError, match=f"no permission to write in {tmp_path}"):
        require_writable(tmp_path / "not/yet/there")


def test_a_place_not_there_yet_is_writable(tmp_path: Path) -> None:
    require_writable(tmp_path / "not/yet/there")
    assert not (tmp_path / "not").exists()


def test_a_file_cannot_replace_a_folder(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    with pytest.raises(InputError, match=r"report\.html: Is a directory"):
        write_whole(tmp_path / "report.html", b"x")
    assert not [path for path in tmp_path.iterdir() if path.name != "report.html"]


@pytest.mark.parametrize(
    "command",
    [
        ["demo.py", "--output", "{}/x"],
        ["rehearse.py", "serve", "--model", "tiny:llama", "--store", "{}/x"],
        ["rehearse.py", "run", "--model", "tiny:llama", "--store", "{}/x", "--", "true"],
    ],
)
def test_scripts_say_so(command: list[str], file: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / command[0])]
        + [word.format(file) for word in command[1:]],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert str(file) in done.stderr
    assert file.read_text() == "kept"
