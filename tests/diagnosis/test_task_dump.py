"""task_dump.py run and report: the command runs as it would without us, and is judged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import task_dump
from tinkerlab.errors import InputError

SCRIPT = Path(task_dump.__file__)


@pytest.fixture
def script(tmp_path: Path):
    """Writes a script and returns its path."""

    def write(code: str, name: str = "train.py") -> Path:
        path = tmp_path / name
        path.write_text(code)
        return path

    return write


@pytest.fixture
def run(tmp_path: Path, capsys):
    """Runs a command under the watchdog with ``--json``: exit code and document."""

    def start(*command: str | Path, options: tuple[str, ...] = ()) -> tuple[int, dict]:
        trace = tmp_path / "trace"
        argv = ["run", "--trace", str(trace), "--json", *options, "--", *map(str, command)]
        code = task_dump.main(argv)
        return code, json.loads(capsys.readouterr().out)

    return start


def test_the_script_sees_what_it_would_see_without_us(tmp_path, script, run):
    code, document = run(
        "python",
        script(
            "import json, sys, pathlib\n"
            "seen = [__name__, sys.argv[1:], sys.path[0] == str(pathlib.Path(__file__).parent)]\n"
            f"pathlib.Path({str(tmp_path / 'seen')!r}).write_text(json.dumps(seen))\n"
        ),
        "--json",
        "--every=3",
    )
    assert code == 0
    assert json.loads((tmp_path / "seen").read_text()) == [
        "__main__",
        ["--json", "--every=3"],
        True,
    ]
    assert document["child_exit_code"] == 0
    assert "never imported tinker" in document["verdict"]


def test_modules_run_as_modules(tmp_path, script, run, monkeypatch):
    script("import sys; sys.exit(5 if __package__ == '' else 1)", "job.py")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert run("python", "-m", "job")[1]["child_exit_code"] == 5


def test_exit_code_of_the_script_is_noted_and_can_be_passed_on(tmp_path, script, run):
    failing = script("raise SystemExit(7)")
    code, document = run(failing)
    assert code == 0 and document["child_exit_code"] == 7
    assert "the script ended with exit code 7" in document["notes"]
    again = ["run", "--pass-exit-code", "--trace", str(tmp_path / "b"), "--", str(failing)]
    assert task_dump.main(again) == 7


def test_a_sitecustomize_of_the_users_own_still_runs(tmp_path, script, run, monkeypatch):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins; builtins.theirs = 'ran'")
    monkeypatch.setenv("PYTHONPATH", str(own))
    marker = tmp_path / "marker"
    run(script(f"open({str(marker)!r}, 'w').write(theirs + __import__('sitecustomize').__file__)"))
    assert marker.read_text() == "ran" + str(own / "sitecustomize.py")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes_work(tmp_path, script, run, method):
    code = f"""
import multiprocessing, pathlib

def square(number):
    return number * number

if __name__ == "__main__":
    with multiprocessing.get_context({method!r}).Pool(2) as pool:
        pathlib.Path({str(tmp_path / "squares")!r}).write_text(str(pool.map(square, range(4))))
"""
    _, document = run(script(code))
    assert (tmp_path / "squares").read_text() == "[0, 1, 4, 9]"
    # A spawned worker is a Python process of its own; a forked one has no watchdog.
    assert document["checked"]["processes"] >= (2 if method == "spawn" else 1)
    assert document["child_exit_code"] == 0


def test_json_keeps_stdout_to_itself(tmp_path, script):
    trace = ["--trace", str(tmp_path / "trace")]
    done = subprocess.run(
        [
            sys.executable,
            str(SCRIPT),
            "run",
            "--json",
            *trace,
            "--",
            str(script("print('chatter')")),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert json.loads(done.stdout)["ok"] is True
    assert "chatter" in done.stderr


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.py", None, "no such script"),
        ("empty.py", b"\n", "empty"),
        ("binary.py", b"\x00\xff\xfe\x00", "does not parse"),
        ("half.py", b"for i in range(3", "half.py:1: does not parse"),
    ],
)
def test_bad_scripts_are_refused_in_a_line(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message) as refused:
        task_dump.main(["run", "--trace", str(tmp_path / "trace"), "--", "python", str(path)])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([], "nothing to run"),
        (["--", "no-such-command"], "no such command"),
        (["--", "python", "{tmp}"], "a folder"),
        (["--", "python", "-I", "-c", "pass"], "no Python process started under the watchdog"),
    ],
)
def test_bad_commands_are_refused_in_a_line(tmp_path, command, message):
    words = [word.format(tmp=tmp_path) for word in command]
    with pytest.raises(InputError, match=message):
        task_dump.main(["run", "--trace", str(tmp_path / "trace"), *words])


def test_a_trace_is_never_written_over(tmp_path, script):
    (tmp_path / "trace").mkdir()
    (tmp_path / "trace" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="not empty"):
        task_dump.main(["run", "--trace", str(tmp_path / "trace"), "--", str(script("pass"))])


def test_report_refuses_what_is_no_trace(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        task_dump.main(["report", str(tmp_path / "missing")])
    with pytest.raises(InputError, match="holds no trace"):
        task_dump.main(["report", str(tmp_path)])
    (tmp_path / "trace-1.jsonl").write_text('{"k": "start"')
    with pytest.raises(InputError, match="no start record"):
        task_dump.main(["report", str(tmp_path)])
    (tmp_path / "trace-1.jsonl").write_text("\x00\x01\nhello\n")
    with pytest.raises(InputError, match=r"trace-1\.jsonl:1: not a record"):
        task_dump.main(["report", str(tmp_path)])
    (tmp_path / "trace-1.jsonl").write_text('{"k": "marvel", "t": 1}\n')
    with pytest.raises(InputError, match="another version"):
        task_dump.main(["report", str(tmp_path)])


def test_a_torn_last_line_is_normal(tmp_path, script, run, capsys):
    run(script("import time; time.sleep(0.3)"))
    (trace,) = (tmp_path / "trace").glob("trace-*.jsonl")
    trace.write_text(trace.read_text().rstrip("\n")[:-9])
    assert task_dump.main(["report", str(tmp_path / "trace"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["checked"]["samples"] > 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_are_passed_on_and_the_verdict_still_comes(tmp_path, script, number, code):
    path = script("import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    child = subprocess.Popen(
        [sys.executable, str(SCRIPT), "run", "--trace", str(tmp_path / "t"), "--", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None and child.stdout.readline() == "up\n"
    time.sleep(0.9)
    child.send_signal(number)
    out, _ = child.communicate(timeout=30)
    assert child.returncode == 0  # of the diagnosis: a script without tinker accuses nobody
    # SIGINT ends Python by KeyboardInterrupt, which leaves 130 or the signal itself.
    assert f"stopped by a signal and ended with exit code {code}" in out
    assert "train.py:3 in <module>" in out


def test_every_prints_tasks_and_speaks_up_when_the_gil_is_held(tmp_path, script, capfd):
    code = """
import asyncio, ctypes

async def waits_long():
    await asyncio.sleep(1.3)

async def main():
    task = asyncio.create_task(waits_long(), name="the-slow-one")
    await task
    ctypes.PyDLL(None).usleep(3_600_000)

asyncio.run(main())
"""
    path = script(code)
    task_dump.main(["run", "--every", "0.5", "--trace", str(tmp_path / "t"), "--", str(path)])
    said = capfd.readouterr().err
    assert "the-slow-one: train.py:5 in waits_long" in said.replace(str(tmp_path) + "/", "")
    assert "no sign of life for 3 s: the GIL is held" in said
    assert f'File "{path}", line 10 in main' in said


def test_the_users_own_faulthandler_timer_is_left_alone(tmp_path, script, run):
    out = tmp_path / "dump"
    code = f"""
import faulthandler, time
with open({str(out)!r}, "w") as stream:
    faulthandler.dump_traceback_later(0.4, file=stream)
    time.sleep(0.9)
"""
    run(script(code))
    assert "line 5 in <module>" in out.read_text()


def test_an_sdk_of_another_shape_is_run_unobserved(tmp_path, script, run):
    package = tmp_path / "tinker" / "lib"
    package.mkdir(parents=True)
    (tmp_path / "tinker" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "internal_client_holder.py").write_text("class Other: pass\n")
    code, document = run(script("import tinker.lib.internal_client_holder as h; h.Other()"))
    assert code == 0 and document["child_exit_code"] == 0
    assert any("not observed" in note for note in document["notes"])


def test_optional_tools_are_named_when_missing(tmp_path, script, monkeypatch):
    monkeypatch.setattr("subprocess.run", lambda *a, **k: subprocess.CompletedProcess(a, 1))
    trace = ["--trace", str(tmp_path / "trace")]
    for option, package in ((["--profile"], "pyinstrument"), (["--aiomonitor", "0"], "")):
        argv = ["run", *option, *trace, "--", "python", str(script("pass"))]
        if package:
            with pytest.raises(InputError, match=f"pip install {package}"):
                task_dump.main(argv)
    with pytest.raises(InputError, match="pip install aiomonitor"):
        task_dump.main(["run", "--aiomonitor", "5000", *trace, "--", str(script("pass"))])


def test_profile_writes_a_page(tmp_path, script, run):
    pytest.importorskip("pyinstrument")
    _, document = run(script("sum(range(10**6))"), options=("--profile",))
    assert document["child_exit_code"] == 0
    assert "pyinstrument" in (tmp_path / "trace" / "profile.html").read_text()[:2_000_000]


@pytest.mark.parametrize(
    "argv", [["run", "--interval", "0"], ["run", "--every", "0"], ["attach", "1", "--looks", "1"]]
)
def test_senseless_options_are_refused(argv):
    with pytest.raises(InputError):
        task_dump.main([*argv, *([] if argv[0] == "attach" else ["--", "python", "-c", "0"])])


def test_the_environment_of_the_caller_stays_as_it_was(script, run):
    before = dict(os.environ)
    run(script("pass"))
    assert dict(os.environ) == before
