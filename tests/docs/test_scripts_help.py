"""Every script explains itself at once: an agent reads ``--help`` instead of the source."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from repository import ROOT
from script_help import help_text, script_names, subcommands

# Importing one of these takes seconds, so none may be loaded before the arguments are parsed.
HEAVY = ["torch", "transformers", "tinker", "tinker_cookbook", "peft", "matplotlib"]

# Runs a script as `python SCRIPT --help` would, then prints which heavy modules that loaded.
PROBE = """
import runpy, sys
heavy, script, *sys.argv[1:] = sys.argv[1:]
sys.path.insert(0, script.rpartition("/")[0])
sys.argv[0] = script
try:
    runpy.run_path(script, run_name="__main__")
except SystemExit as stop:
    assert not stop.code, stop.code
print("loaded:", *(name for name in heavy.split(",") if name in sys.modules))
"""


def test_there_are_scripts() -> None:
    expected = {"check_data.py", "check_results.py", "demo.py", "evaluate.py", "export_model.py"}
    assert expected | {"rehearse.py", "report.py", "sl_trainer.py"} <= set(script_names())


@pytest.mark.parametrize("script", script_names())
def test_help_shows_usage_and_an_example(script: str) -> None:
    text = help_text(script)
    assert text.startswith(f"usage: {script}")
    assert re.search(rf"(?is)example.*python scripts/{script}", text), "no example in the epilog"
    for name in subcommands(script):
        assert help_text(script, name).startswith(f"usage: {script} {name}")


@pytest.mark.parametrize("script", script_names())
def test_help_loads_nothing_heavy(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, ",".join(HEAVY), str(ROOT / "scripts" / script), "--help"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == "loaded:"


@pytest.mark.parametrize("script", script_names())
def test_an_unknown_flag_is_bad_usage(script: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / script), "--no-such-flag"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
