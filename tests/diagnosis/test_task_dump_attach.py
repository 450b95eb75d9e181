"""task_dump.py attach: the state of a process that is already running."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import task_dump
from tinkerlab.diagnosis.stalls import attach
from tinkerlab.errors import InputError

# Stacks as py-spy 0.4.3 printed them for the real processes below, with shorter paths.
SDK = "/env/lib/python3.11/site-packages/tinker/lib/internal_client_holder.py"
ASYNCIO = "/usr/lib/python3.11/asyncio/"
LOOP = [
    (ASYNCIO + "base_events.py", 1922, "_run_once"),
    (ASYNCIO + "base_events.py", 607, "run_forever"),
    (SDK, 137, "_background_thread_func"),
    ("/usr/lib/python3.11/threading.py", 982, "run"),
]
IDLE = [("/usr/lib/python3.11/selectors.py", 468, "select"), *LOOP]
CALLBACK = [("/home/me/train.py", 5, "on_done"), (ASYNCIO + "events.py", 80, "_run"), *LOOP]
RESULT = [
    ("/usr/lib/python3.11/threading.py", 327, "wait"),
    ("/usr/lib/python3.11/concurrent/futures/_base.py", 451, "result"),
    ("/home/me/train.py", 9, "<module>"),
]
COMPUTE = [("/home/me/train.py", 20, "collate"), ("/home/me/train.py", 9, "<module>")]
IN_LOOP = [("/home/me/train.py", 20, "grade"), *LOOP[:2], (ASYNCIO + "runners.py", 190, "run")]


def dump(main, sdk=None, keeper: str = "") -> attach.Look:
    """What py-spy printed for these stacks; ``keeper`` names the thread with the GIL."""
    rows = []
    for number, (name, frames) in enumerate((("main", main), ("sdk", sdk)), 100):
        if frames is None:
            continue
        rows.append(
            {
                "pid": 100,
                "thread_id": 140_000 + number,
                "thread_name": None,
                "os_thread_id": number,
                "active": name == keeper,
                "owns_gil": name == keeper,
                "frames": [
                    {"name": function, "filename": file, "line": line, "module": None}
                    for file, line, function in frames
                ],
            }
        )
    return attach.parse_dump(json.dumps(rows))


@pytest.mark.parametrize(
    ("look", "causes"),
    [
        (dump(RESULT, IDLE), []),
        (dump(IDLE, IDLE), []),
        (dump(RESULT, CALLBACK), ["sdk-loop-blocked"]),
        (dump(COMPUTE, IDLE), ["client-stall"]),
        (dump(IN_LOOP, IDLE), ["event-loop-blocked"]),
        (dump(COMPUTE, IDLE, keeper="main"), ["gil-held"]),
        (dump(COMPUTE), []),  # no client yet: starting up
    ],
)
def test_states_are_named_in_the_same_words(look, causes):
    diagnosis = attach.judge([look] * 3, 3.0)
    assert [finding.cause for finding in diagnosis.findings] == causes


def test_what_only_some_looks_saw_accuses_nobody():
    looks = [dump(COMPUTE, IDLE), dump(RESULT, IDLE), dump(RESULT, CALLBACK)]
    assert attach.judge(looks, 3.0).ok
    moving = [(COMPUTE[0][0], line, "collate") for line in (20, 21)]
    looks = [dump([frame, COMPUTE[1]], IDLE, keeper="main") for frame in moving]
    # Python that runs moves on: that is the script's own code, not a held GIL.
    assert [f.cause for f in attach.judge(looks, 3.0).findings] == ["client-stall"]


def test_waiting_on_the_service_is_said():
    assert "waiting on the service" in attach.judge([dump(RESULT, IDLE)] * 2, 1.0).verdict


def test_two_idle_loops_may_wait_for_the_script_itself():
    """A queue that nobody fills looks like a request in flight from outside."""
    diagnosis = attach.judge([dump(IDLE, IDLE)] * 2, 1.0)
    assert diagnosis.ok
    assert "waiting on the service" not in diagnosis.verdict
    assert "a queue that nobody fills" in diagnosis.verdict


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": 1}', '[{"frames": [{}]}]'])
def test_other_output_is_refused(text):
    with pytest.raises(InputError, match="something other"):
        attach.parse_dump(text)


def test_no_threads_are_refused():
    with pytest.raises(InputError, match="no Python thread"):
        attach.parse_dump("[]")


def test_missing_py_spy_is_named(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(attach.sys, "executable", "/nowhere/python")
    with pytest.raises(InputError, match="pip install py-spy"):
        attach.look(1)


@pytest.fixture
def py_spy() -> str:
    program = Path(sys.executable).with_name("py-spy")
    if not program.is_file():
        pytest.skip("py-spy is not installed")
    return str(program)


# The SDK's own thread runs, as after the first client; no service is needed for that.
PRELUDE = """
import asyncio, ctypes, sys, threading, time
sys.modules["torch"] = None
from tinker.lib.internal_client_holder import _internal_client_holder_thread_singleton as sdk
loop = sdk.get_loop()

def collate():
    time.sleep(60)

async def grade():
    time.sleep(60)

def native():
    ctypes.PyDLL(None).usleep(60_000_000)

def waiting():
    asyncio.run_coroutine_threadsafe(asyncio.sleep(60), loop).result()

print("up", flush=True)
"""


@pytest.fixture
def start(tmp_path, py_spy) -> Iterator[Callable[[str], int]]:
    """Starts a script that stays where it is for a minute; its process number."""
    children: list[subprocess.Popen[str]] = []

    def begin(code: str) -> int:
        script = tmp_path / "train.py"
        script.write_text(PRELUDE + code)
        child = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
        children.append(child)
        assert child.stdout is not None and child.stdout.readline() == "up\n"
        time.sleep(0.3)
        look = [py_spy, "dump", "--pid", str(child.pid)]
        tried = subprocess.run(look, capture_output=True, text=True)
        if tried.returncode:
            pytest.skip(f"ptrace is not allowed here: {tried.stderr.splitlines()[:1]}")
        return child.pid

    yield begin
    for child in children:
        child.kill()
        child.communicate()


@pytest.mark.parametrize(
    ("code", "causes", "where"),
    [
        ("waiting()", [], ""),
        ("collate()", ["client-stall"], "in collate"),
        ("asyncio.run(grade())", ["event-loop-blocked"], "in grade"),
        ("loop.call_soon_threadsafe(collate)\nwaiting()", ["sdk-loop-blocked"], "in collate"),
        ("native()", ["gil-held"], "in native"),
    ],
)
def test_real_processes_are_looked_at(start, capsys, code, causes, where):
    argv = ["attach", str(start(code)), "--looks", "3", "--seconds", "0.6", "--json"]
    assert task_dump.main(argv) == bool(causes)
    document = json.loads(capsys.readouterr().out)
    assert [finding["cause"] for finding in document["findings"]] == causes
    assert all(finding["where"].endswith(where) for finding in document["findings"])
    assert document["checked"] == {"looks": 3, "threads": 2}


def test_a_process_that_is_not_there_is_refused(py_spy):
    with pytest.raises(InputError, match="cannot look into process 4194000") as refused:
        task_dump.main(["attach", "4194000"])
    assert "\n" not in str(refused.value)
