"""tinker-cookbook's own loops, looked at while they run: nothing is wrong with them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import run_recipes as recipes

from tinkerlab.watching.board import Board
from tinkerlab.watching.status import Status

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _service(rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_BASE_URL", rehearsal.base_url)
    monkeypatch.setenv("TINKER_API_KEY", "tml-rehearsal")


def watched(parent: Path, train: Callable[[], None]) -> list[Status]:
    """Every status of the one run below ``parent`` while ``train`` makes it, and one after."""
    failures: list[BaseException] = []

    def target() -> None:
        try:
            train()
        except BaseException as error:
            failures.append(error)

    board, seen = Board([parent]), []
    thread = threading.Thread(target=target)
    thread.start()
    while thread.is_alive():
        seen += board.look()
        time.sleep(0.02)
    thread.join()
    assert not failures, failures
    return seen + board.look()


def test_supervised(rehearsal, tmp_path: Path) -> None:
    chats = recipes.chat_file(tmp_path, 96)
    folder = tmp_path / "runs" / "sft"
    folder.parent.mkdir()
    seen = watched(folder.parent, lambda: recipes.cookbook_sft(rehearsal, folder, chats))
    last = seen[-1]
    assert (last.state, last.kind, last.name) == ("finished", "sft", "sft")
    assert (last.done, last.total) == (12, 12)
    assert last.train and last.train.key == "train_mean_nll" and (last.train.change or 0) < 0
    assert last.seconds_per_step and last.eta is None
    states = [status.state for status in seen]
    assert set(states) <= {"starting", "running", "finished"}
    assert "running" in states and states.index("finished") > states.index("running")
    wrong = {finding.cause for status in seen for finding in status.findings}
    assert wrong == set()


def test_reinforcement(rehearsal, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "rl"
    folder.parent.mkdir()
    seen = watched(
        folder.parent,
        lambda: recipes.cookbook_rl(rehearsal, folder, lambda text: len(set(text)) / 12, batches=4),
    )
    last = seen[-1]
    assert (last.state, last.kind) == ("finished", "rl")
    assert (last.done, last.total) == (4, 4)
    assert last.train and last.train.label == "reward"
    assert last.kl and last.entropy and last.seconds_per_step
