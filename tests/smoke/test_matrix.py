"""The matrix on real services: everything passes, a part fails, it is stopped, it goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from repository import ROOT

from tinkerlab.rehearsal.models.cache import CACHE_VARIABLE, cache_root

SCRIPT = ROOT / "scripts" / "live_model_matrix_smoke.py"
CACHE = cache_root()


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str
    report: dict[str, Any]

    def status(self, name: str) -> str:
        return self.report["cells"][name]["status"]


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Starts the script in a folder of its own, with ``env`` beyond that of the tests."""

    def begin(*arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(SCRIPT), "--output", "out/report.json", *arguments],
            cwd=tmp_path,
            # No credential of the user's, wherever the SDK would look for one.
            env={**os.environ, "HOME": str(tmp_path), CACHE_VARIABLE: str(CACHE), **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return begin


@pytest.fixture
def run(start: Start, tmp_path: Path) -> Callable[..., Ran]:
    def to_the_end(*arguments: str, env: dict[str, str] | None = None) -> Ran:
        process = start(*arguments, env=env)
        out, err = process.communicate(timeout=400)
        assert "Traceback" not in err, err
        file = tmp_path / "out" / "report.json"
        return Ran(process.returncode, out, err, json.loads(file.read_text()))

    return to_the_end


@pytest.mark.slow
def test_every_family_by_every_method_on_a_rehearsal(run, tmp_path: Path) -> None:
    """What CI runs: no key, so the rehearsal is chosen by itself."""
    ran = run()
    assert ran.code == 0, ran.out + ran.err
    assert ran.out.startswith("OK: 8 passed, on: rehearsal\n")
    report = ran.report
    assert report["counts"] == {"passed": 8} and report["service"] == "rehearsal"
    for name, row in report["cells"].items():
        assert row["checks"] == dict.fromkeys(
            ("finished", "metrics", "loss_finite", "checkpoint", "sampled"), True
        ), name
        run_folder = tmp_path / row["run"]
        assert len((run_folder / "metrics.jsonl").read_text().splitlines()) == 2
        config = json.loads((run_folder / "config.json").read_text())
        assert config["lora_rank"] == 8 and config["base_model"] == row["model"]
        assert row["reply"]
    assert report["cells"]["base-grpo"]["figures"]["env/all/by_group/frac_mixed first"] > 0

    again = run()
    assert again.code == 0 and "8 of 8 cells passed before" in again.err
    assert not (tmp_path / "out" / "report-cells" / "base-sft" / "2").exists()


@pytest.mark.slow
def test_a_cell_that_fails_is_reported_and_alone_run_again(run, tmp_path: Path) -> None:
    """The service damages one reply of the first cell; the second cell has a healthy service."""
    arguments = ("--families", "base", "hybrid", "--methods", "sft", "--at-once", "1")
    fault = ("--fault", "corrupt:1x,on=/retrieve_future")
    ran = run(*arguments, *fault)
    assert ran.code == 1
    assert (ran.status("base-sft"), ran.status("hybrid-sft")) == ("failed", "passed")
    row = ran.report["cells"]["base-sft"]
    # The reason is the last line with which its trainer stopped.
    log = (tmp_path / row["log"]).read_text()
    last = [line for line in log.splitlines() if line.startswith("failed: ")][-1]
    assert row["reason"].startswith(f"exit code 1; {last[:80]}")
    assert ran.out.startswith("NOT OK: 1 failed, 1 passed") and last[:80] in ran.out
    assert ran.report["failed"] == ["base-sft"] and not ran.report["ok"]

    allowed = run(*arguments, *fault, "--allow-failures", "1")
    assert allowed.code == 0 and allowed.status("base-sft") == "failed"
    assert allowed.report["ok"] and allowed.report["allowed_failures"] == 1

    mended = run(*arguments)
    assert mended.code == 0 and mended.report["counts"] == {"passed": 2}
    assert "1 of 2 cells passed before" in mended.err
    folders = {p.name for p in (tmp_path / "out" / "report-cells" / "base-sft").iterdir()}
    assert folders == {"1", "2", "3"}  # each attempt keeps its log
    assert len(list((tmp_path / "out" / "report-cells" / "hybrid-sft").iterdir())) == 1


@pytest.fixture
def one(rehearsal) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment for one cell on a service that is there already."""
    model = f"base={rehearsal.model}"
    env = {name: rehearsal.env[name] for name in ("TINKER_API_KEY", "TINKER_BASE_URL")}
    return ["--families", "base", "--models", model], {**env, "HF_HUB_OFFLINE": "1"}


def test_no_signal_is_a_kind_of_its_own(run, one) -> None:
    arguments, env = one
    ran = run(*arguments, "--methods", "grpo", "--reward", "exact", "--max-tokens", "8", env=env)
    assert ran.code == 0, ran.out + ran.err
    row = ran.report["cells"]["base-grpo"]
    assert row["status"] == "no signal" and row["checks"] == {"finished": False}
    assert row["reason"].startswith("truncated: ")
    assert ran.report["service"] == env["TINKER_BASE_URL"]
    # A reward that can't be used is another matter.
    ran = run(*arguments, "--methods", "grpo", "--reward", "none.py:score", env=env)
    assert ran.code == 1 and ran.status("base-grpo") == "failed"
    assert "no file none.py" in ran.report["cells"]["base-grpo"]["reason"]


def test_a_model_that_is_not_served(run, one) -> None:
    _, env = one
    ran = run("--families", "base", "--models", "base=tiny:nothing", "--methods", "sft", env=env)
    assert ran.code == 1 and ran.status("base-sft") == "failed"


def test_a_cell_that_takes_too_long(run, one) -> None:
    arguments, env = one
    ran = run(*arguments, "--methods", "sft", "--time-limit", "0.3", env=env)
    assert ran.code == 1
    assert "it took longer than --time-limit" in ran.report["cells"]["base-sft"]["reason"]


@pytest.mark.slow
def test_stopped_it_says_so_and_goes_on(start, run, one, tmp_path: Path) -> None:
    arguments, env = one
    process = start(*arguments, "--at-once", "1", env=env)
    log = tmp_path / "out" / "report-cells" / "base-sft" / "1" / "output.log"
    for _ in range(1200):
        if log.exists() and log.read_text():
            break
        time.sleep(0.05)
    second = run_refused(start, arguments, env)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "interrupted; the same command goes on" in err and "Traceback" not in err
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["counts"] == {"interrupted": 1, "not run": 1} and not report["ok"]
    assert out.startswith("NOT OK: ")
    assert "runs a matrix there" in second

    ran = run(*arguments, env=env)
    assert ran.code == 0 and ran.report["counts"] == {"passed": 2}


def run_refused(start: Start, arguments: list[str], env: dict[str, str]) -> str:
    """What a second start on the same report says while the first is at work."""
    process = start(*arguments, env=env)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    return err
