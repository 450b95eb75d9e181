"""The model cache: whole folders or none, one build at a time, leftovers of killed builds gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tinkerlab.errors import InputError
from tinkerlab.rehearsal.models import cache

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"

# Builds a folder of two files slowly, saying when the first one is written.
SLOW_BUILD = """
import sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from tinkerlab.rehearsal.models.cache import cached_folder
def build(folder):
    with open(sys.argv[2], "a") as log:
        log.write("built\\n")
    (folder / "first").write_text("1")
    print("started", flush=True)
    time.sleep(float(sys.argv[3]))
    (folder / "second").write_text("2")
print(sorted(p.name for p in cached_folder("model", build).iterdir()), flush=True)
"""


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def start_build(log: Path, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SLOW_BUILD, str(SCRIPTS), str(log), str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ.copy(),
    )


def test_builds_once_and_readable_by_others(root: Path) -> None:
    calls = []

    def build(folder: Path) -> None:
        calls.append(folder)
        (folder / "file").write_text("x")
        (folder / "file").chmod(0o600)

    first = cache.cached_folder("model", build)
    assert cache.cached_folder("model", build) == first == root / "model"
    assert len(calls) == 1
    assert calls[0] != first
    assert first.stat().st_mode & 0o777 == 0o755
    assert (first / "file").stat().st_mode & 0o777 == 0o644


def test_a_failed_build_leaves_nothing_and_the_next_one_works(root: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "file").write_text("half")
        raise ValueError("broken input")

    with pytest.raises(ValueError, match="broken input"):
        cache.cached_folder("model", fail)
    assert [p.name for p in root.iterdir() if p.is_dir()] == []
    assert (cache.cached_folder("model", lambda f: (f / "a").touch()) and None) is None
    assert [p.name for p in (root / "model").iterdir()] == ["a"]


def test_a_killed_build_is_never_used_and_its_remains_are_removed(
    root: Path, tmp_path: Path
) -> None:
    killed = start_build(tmp_path / "log", 60)
    assert killed.stdout and killed.stdout.readline() == "started\n"
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not (root / "model").exists()
    assert list(root.glob("model.partial-*"))

    again = start_build(tmp_path / "log", 0)
    out, _ = again.communicate(timeout=60)
    assert out.splitlines()[-1] == "['first', 'second']"
    assert not list(root.glob("model.partial-*"))


def test_two_processes_build_once(root: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    first = start_build(log, 1.0)
    assert first.stdout and first.stdout.readline() == "started\n"
    second = start_build(log, 1.0)  # must wait for the first, then find its folder
    time.sleep(0.2)
    for process in (first, second):
        out, _ = process.communicate(timeout=60)
        assert out.splitlines()[-1] == "['first', 'second']"
    assert log.read_text() == "built\n"


def test_an_unwritable_cache_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocker = tmp_path / "file"
    blocker.touch()
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(blocker / "below"))
    with pytest.raises(InputError, match=cache.CACHE_VARIABLE) as caught:
        cache.cached_folder("model", lambda folder: None)
    assert "\n" not in str(caught.value)
