"""What the tools share: who is let in, what is stopped, and which process may be ended."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tinkerlab.diagnosis.run_analysis.run import lock_holder
from tinkerlab.errors import InputError
from tinkerlab.mcp import backend
from tinkerlab.mcp.errors import Refusal
from tinkerlab.mcp.jobs import Outcome
from tinkerlab.mcp.lab import Lab, end_orphan
from tinkerlab.mcp.settings import Settings
from tinkerlab.mcp.training_tools import TrainingTools

HOLD = (
    "import sys, time; from pathlib import Path; from tinkerlab.runs.folder import RunFolder\n"
    "with RunFolder(Path(sys.argv[1])).locked(): print('held', flush=True); time.sleep(60)\n"
)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """With one session, ``s``."""
    lab = Lab(Settings(tmp_path, busy_seconds=0.2))
    folder = lab.sessions.folder / "s"
    (folder / "run").mkdir(parents=True)
    row = {"id": "s", "method": "sft", "base_model": "tiny:llama", "rehearse": True}
    (folder / "session.json").write_text(json.dumps({**row, "created": "", "total_steps": 3}))
    return lab


@pytest.fixture
def trainer(lab: Lab) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the session's run as a trainer does."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lab.sessions.get("s").run)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_the_trainer_of_a_dead_server_is_ended(lab: Lab, trainer: subprocess.Popen[str]) -> None:
    session = lab.sessions.get("s")
    session.note_processes([trainer.pid])
    end_orphan(session.run, session.processes)
    assert trainer.wait(10) == -9 and lock_holder(session.run / ".lock") is None


@pytest.mark.parametrize("noted", [None, "[]", "[0, -1, true, 1]", "{}", "3", "damaged"])
def test_a_trainer_begun_by_hand_is_left_alone(
    lab: Lab, trainer: subprocess.Popen[str], noted: str | None
) -> None:
    session = lab.sessions.get("s")
    if noted is not None:
        (session.folder / "processes.json").write_text(noted)
    end_orphan(session.run, session.processes, seconds=0.5)
    assert trainer.poll() is None


@pytest.mark.parametrize("content", ["", "0", "-1", "nonsense"])
def test_a_lock_that_names_no_process_ends_none(
    lab: Lab, trainer: subprocess.Popen[str], content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = lab.sessions.get("s")
    session.note_processes([trainer.pid])
    (session.run / ".lock").write_text(content)
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("something was killed"))
    end_orphan(session.run, session.processes, seconds=0.5)


def sleeper(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async def environment(rehearse: bool) -> dict[str, str]:
        await asyncio.sleep(0.2)
        return dict(os.environ)

    monkeypatch.setattr(lab.backend, "environment", environment)
    return [sys.executable, "-c", "import time; time.sleep(30)"]


def test_a_job_of_a_cancelled_call_is_kept_and_noted(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next call must not take it for an orphan, the next server must."""
    ended: list[list[int]] = []
    monkeypatch.setattr("tinkerlab.mcp.lab.end_orphan", lambda run, started: ended.append(started))
    command = sleeper(lab, monkeypatch)

    async def go() -> list[int]:
        session = lab.sessions.get("s")
        first = asyncio.create_task(lab.run(session, command, "training"))
        await asyncio.sleep(1)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await lab.run(session, [sys.executable, "-c", ""], "sampling")
        noted = session.processes
        await lab.close()
        return noted

    noted = asyncio.run(go())
    assert len(noted) == 2 and len(set(noted)) == 2
    assert ended == [[]]  # looked for before the first, and not again while that ran


def test_stop_reaches_a_call_that_has_no_process_yet(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = sleeper(lab, monkeypatch)

    async def go() -> Any:
        async def call() -> None:
            async with lab.hold("s", "training") as session:
                await lab.run(session, command, "training")

        running = asyncio.create_task(call())
        await asyncio.sleep(0.05)
        assert await lab.stop("s") is True
        [refused] = await asyncio.gather(running, return_exceptions=True)
        assert await lab.stop("s") is False
        async with lab.hold("s", "again") as session:
            await lab.run(session, [sys.executable, "-c", ""], "training")
        return refused

    refused = asyncio.run(asyncio.wait_for(go(), 20))
    assert isinstance(refused, Refusal) and refused.kind == "stopped"


def test_a_damaged_session_does_not_stay_busy(lab: Lab) -> None:
    """Mended by hand, it is let in again."""
    file = lab.sessions.get("s").run / "checkpoints.jsonl"
    file.write_text("nonsense\n{}\n")

    async def go() -> None:
        for _ in range(2):
            with pytest.raises(InputError, match="not a JSON object"):
                async with lab.hold("s", "sampling"):
                    pass
        assert lab.doing("s") is None
        file.write_text("")
        async with lab.hold("s", "sampling"):
            assert lab.doing("s") == "sampling"

    asyncio.run(go())


def test_a_cancelled_call_leaves_the_start_of_the_rehearsal_to_the_next(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    starts = []

    def start() -> Any:
        starts.append(1)
        time.sleep(0.5)
        if len(starts) == 1:
            raise Refusal("service_failed", "it did not start", "call again")
        process = SimpleNamespace(poll=lambda: None)
        return SimpleNamespace(env={"A": "1"}, process=process, stop=lambda: starts.append(9))

    services = backend.Backend(lab.settings)
    monkeypatch.setattr(services, "_start", start)

    async def go() -> None:
        with pytest.raises(Refusal, match="did not start"):
            await services.environment(True)
        cancelled = asyncio.create_task(services.environment(True))
        await asyncio.sleep(0.1)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        assert await services.environment(True) == {"A": "1"}
        assert starts == [1, 1]
        await services.close()
        assert starts == [1, 1, 9]

    asyncio.run(go())


def test_steps_of_a_cancelled_call_are_not_taken_for_ones_own(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(session: Any, *_: Any) -> Outcome:
        (session.run / "checkpoints.jsonl").write_text('{"name": "000002", "step": 2}\n')
        return Outcome(2, None, "log_path run: process 5 is training in it")

    monkeypatch.setattr(lab, "run", run)
    context: Any = None
    with pytest.raises(Refusal, match="process 5") as refused:
        asyncio.run(TrainingTools(lab).train_sft_step("s", context, 3))
    assert refused.value.kind == "busy"
