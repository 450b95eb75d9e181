"""Tasks of Inspect's in a file of the test's own, and Inspect's own files kept out of the home."""

import shutil
from pathlib import Path

import pytest

TASKS = Path(__file__).with_name("inspect_tasks.py")


@pytest.fixture
def task_file(tmp_path, monkeypatch) -> Path:
    """A copy that a test may change; ``f"{task_file}@sums"`` names a task in it."""
    # Where Inspect buffers samples that are not in a log yet.
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    return Path(shutil.copy(TASKS, tmp_path / "my_tasks.py"))


@pytest.fixture
def service(rehearsal, monkeypatch):
    """The rehearsal is where scripts of this process connect to."""
    for name in ("TINKER_BASE_URL", "TINKER_API_KEY"):
        monkeypatch.setenv(name, rehearsal.env[name])
