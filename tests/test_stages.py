"""The stage runner: order, resume, refusals, failures; with commands that only leave marks."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tinkerlab.errors import CheckFailed, InputError
from tinkerlab.stages import Stage, StageRunner

SCRIPTS = Path(__file__).parents[1] / "scripts"
MARK = "import sys, pathlib; p = pathlib.Path(sys.argv[1]); p.open('a').write('x')"


def stage(folder: Path, name: str, code: str = MARK, **kwargs) -> Stage:
    made = folder / f"{name}.txt"
    return Stage(name, f"make {name}", lambda: ["-c", code, str(made)], made, **kwargs)


def marks(folder: Path) -> dict[str, int]:
    return {path.stem: len(path.read_text()) for path in sorted(folder.glob("*.txt"))}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "out"


def test_stages_run_once_and_in_order(folder, capsys):
    chain = [stage(folder, name) for name in ("a", "b")]
    assert StageRunner(folder, {}).run(chain) == []
    runner = StageRunner(folder, {})
    assert runner.run(chain) == []
    assert marks(folder) == {"a": 1, "b": 1}
    assert set(runner.seconds) == {"a", "b"}
    said = capsys.readouterr().err
    assert "[1/2] make a\n$ python -c" in said
    assert "[2/2] make b: done before" in said


def test_a_failed_stage_stops_the_chain_and_the_next_start_goes_on_there(folder):
    broken = stage(folder, "b", "raise SystemExit(1)")
    with pytest.raises(CheckFailed, match="make b ended with exit code 1"):
        StageRunner(folder, {}).run([stage(folder, "a"), broken, stage(folder, "c")])
    StageRunner(folder, {}).run([stage(folder, name) for name in "abc"])
    assert marks(folder) == {"a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize(
    ("code", "error"),
    [(1, CheckFailed), (2, InputError), (130, KeyboardInterrupt), (7, CheckFailed)],
)
def test_exit_codes_keep_their_meaning(folder, code, error):
    with pytest.raises(error):
        StageRunner(folder, {}).run([stage(folder, "a", f"raise SystemExit({code})")])


def test_an_optional_stage_may_fail(folder, capsys):
    optional = stage(folder, "a", "raise SystemExit(2)", optional=True)
    assert StageRunner(folder, {}).run([optional, stage(folder, "b")]) == ["a"]
    assert marks(folder) == {"b": 1}
    assert "going on without it" in capsys.readouterr().err


def test_what_is_gone_is_made_again_and_so_is_what_was_built_on_it(folder):
    chain = [stage(folder, name) for name in "abc"]
    StageRunner(folder, {}).run(chain)
    (folder / "b.txt").unlink()
    StageRunner(folder, {}).run(chain)
    assert marks(folder) == {"a": 1, "b": 1, "c": 2}


def test_a_command_is_made_when_its_turn_has_come(folder):
    second = Stage(
        "b",
        "b",
        lambda: ["-c", MARK, str(folder / f"{(folder / 'a.txt').read_text()}.txt")],
        folder / "x.txt",
    )
    StageRunner(folder, {}).run([stage(folder, "a"), second])
    assert marks(folder) == {"a": 1, "x": 1}


def test_another_run_or_foreign_files_in_the_folder_are_refused(folder):
    StageRunner(folder, {"base_model": "a", "steps": 2})
    with pytest.raises(InputError, match=r"other settings \(base_model, hosted\)"):
        StageRunner(folder, {"base_model": "b", "hosted": True, "steps": 2})
    (folder / "stages.json").write_text("{}")
    with pytest.raises(InputError, match="something else"):
        StageRunner(folder, {})
    (folder / "stages.json").unlink()
    (folder / "thesis.txt").write_text("")
    with pytest.raises(InputError, match="something else"):
        StageRunner(folder, {})
    with pytest.raises(InputError, match="a file is in the way"):
        StageRunner(folder / "thesis.txt", {})
    assert (folder / "thesis.txt").exists()


def test_an_interrupt_lets_the_command_finish_its_own_way(folder):
    """Ctrl-C reaches runner and command; the runner waits for what the command still does."""
    child = (
        "import signal, sys, time, pathlib\n"
        "def stop(*_): pathlib.Path(sys.argv[1]).write_text('saved'); sys.exit(130)\n"
        "signal.signal(signal.SIGINT, stop); pathlib.Path(sys.argv[1]).write_text('started')\n"
        "time.sleep(60)"
    )
    made = folder / "a.txt"
    program = (
        "import sys, pathlib\n"
        "from tinkerlab import cli\n"
        "from tinkerlab.stages import Stage, StageRunner\n"
        "folder, made, child = map(str, sys.argv[1:])\n"
        "stage = Stage('a', 'a', lambda: ['-c', child, made], pathlib.Path(made))\n"
        "cli.run(lambda argv: len(StageRunner(pathlib.Path(folder), {}).run([stage])))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder), str(made), child],
        env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (made.exists() and made.read_text() == "started"):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert made.read_text() == "saved"
    assert "the same command goes on here" in errors
    assert json.loads((folder / "stages.json").read_text())["stages"] == {}
