"""The script: on live runs, on a terminal and in a pipe, until the end or the first problem."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from repository import ROOT
from run_findings import NAN, folder, rl, sft

import watch_run
from tinkerlab.errors import InputError

SCRIPT = ROOT / "scripts" / "watch_run.py"


def script(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def on_a_terminal(arguments: list[object], rows: int = 24, interrupt_at: str = "") -> tuple:
    """(exit code, what was written) under a pseudo-terminal of 80 columns.

    Args:
        interrupt_at: press Ctrl-C once this was written.
    """
    import fcntl

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 80, 0, 0))
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    os.close(slave)
    written, end = b"", time.monotonic() + 100
    while time.monotonic() < end:
        if select.select([master], [], [], 0.2)[0]:
            try:
                piece = os.read(master, 65536)
            except OSError:  # Linux: the other side is closed
                break
            written += piece
            if interrupt_at and interrupt_at.encode() in written:
                process.send_signal(signal.SIGINT)
                interrupt_at = ""
        elif process.poll() is not None:
            break
    code = process.wait(timeout=20)
    os.close(master)
    return code, written.decode()


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def finished(path: Path, name: str) -> Path:
    (path / name).mkdir()
    final = [{"name": "final", "batch": 40, "epoch": 0, "step": 40, "final": True}]
    return folder(path / name, sft(40), checkpoints=final)


def broken(path: Path, name: str) -> Path:
    (path / name).mkdir()
    rows = sft(30, 100)
    rows[-1]["train_mean_nll"] = NAN
    return folder(path / name, rows)


def cookbook(path: Path, name: str) -> Path:
    """A folder as tinker-cookbook 0.5.8's RL loop leaves it (C/rl/train.py, C/utils/ml_log.py)."""
    (path / name).mkdir()
    signals = {"optim/kl_sample_train_v1": 0.001, "optim/entropy": 0.9, "optim/lr": 1e-4}
    rows = rl(20, lambda t: {**signals, "time/total": 30.0})
    rows[10]["test/env/all/reward/total"] = 0.4
    (path / name / "logs.log").write_text("tinker_cookbook.rl.train:735 [INFO] step\n")
    config = {"model_name": "Qwen/Qwen3-8B", "learning_rate": 1e-4, "save_every": 20}
    records = [{"name": "final", "batch": 20, "state_path": "tinker://a/weights/final"}]
    return folder(path / name, rows, config=config, checkpoints=records)


def test_once_shows_all_runs_of_a_folder(tmp_path: Path) -> None:
    finished(tmp_path, "sft")
    cookbook(tmp_path, "rl")
    done = script(tmp_path, "--once")
    assert done.returncode == 0, done.stderr
    assert "2 runs: 2 finished" in done.stdout
    assert "reward" in done.stdout and "held-out reward 0.4" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_json_is_one_document_and_a_problem_is_1(tmp_path: Path) -> None:
    finished(tmp_path, "sft")
    broken(tmp_path, "nan")
    done = script(tmp_path, "--json")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert (document["ok"], document["done"]) == (False, False)
    by_name = {run["name"]: run for run in document["runs"]}
    assert by_name["sft"]["state"] == "finished" and not by_name["sft"]["needs_attention"]
    assert [f["cause"] for f in by_name["nan"]["findings"]] == ["loss-not-finite"]
    assert by_name["nan"]["findings"][0]["fix"]


def test_until_problem_names_it_in_lines(tmp_path: Path) -> None:
    done = script(broken(tmp_path, "nan"), "--until-problem", "--every", 0.1)
    assert done.returncode == 1 and done.stderr == ""
    assert "nan  running  step 30/100 (30 %)  loss nan" in done.stdout
    assert "nan  problem [loss-not-finite] step 29" in done.stdout and "fix: stop" in done.stdout


def test_until_done_ends_with_1_at_a_stall(tmp_path: Path) -> None:
    (tmp_path / "slow").mkdir()
    run = folder(tmp_path / "slow", sft(30, 100))
    began = time.time() - 40
    os.utime(run / "metrics.jsonl", (began, began))
    done = script(run, "--until-done", "--every", 0.1, "--stalled-after", 20)
    assert done.returncode == 1
    assert re.search(r"slow  stalled for 4\d s  step 30/100", done.stdout)
    assert "nothing was written for" in done.stdout


def test_on_a_terminal_the_table_is_refreshed_in_place(tmp_path: Path) -> None:
    finished(tmp_path, "sft")
    broken(tmp_path, "nan")
    code, written = on_a_terminal([tmp_path, "--every", 0.2], interrupt_at="\x1b[1A")
    assert code == 1, "Ctrl-C leaves with what was found"
    assert "\x1b[1A" in written, "the cursor went up to write over the table"
    assert "Traceback" not in written
    last = plain(written).split("2 runs: ")[-1]
    assert last.startswith("1 running, 1 finished") and "[loss-not-finite]" in last


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder or file"):
        watch_run.main([str(tmp_path / "no"), "--once"])
    with pytest.raises(InputError, match="no run in it yet"):
        watch_run.main([str(tmp_path), "--json"])
    with pytest.raises(InputError, match="--every must be more than 0"):
        watch_run.main([str(tmp_path), "--every", "0"])
    with pytest.raises(InputError, match="--every must be at most 86400 seconds"):
        watch_run.main([str(tmp_path), "--every", "inf"])
    with pytest.raises(InputError, match="--wait must be 0 seconds or more"):
        watch_run.main([str(tmp_path), "--wait", "-1"])
    with pytest.raises(InputError, match="no such folder or file"):
        watch_run.main([str(tmp_path / "no"), "--wait", "0.1"])


@pytest.mark.slow
def test_a_live_run_from_before_its_start_to_its_end(rehearsal, tmp_path: Path) -> None:
    """And the same run killed: stopped at once, since nobody holds its folder."""
    chats = tmp_path / "chats.jsonl"
    rows = [{"prompt": f"Say {i}.", "completion": f"{i}, of course."} for i in range(24)]
    chats.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {
        "base_model": rehearsal.model,
        "train_file": chats,
        "log_path": tmp_path / "live",
        "renderer": "qwen3_instruct",
        "num_steps": 400,
        "train_batch_size": 2,
        "max_seq_len": 64,
        "lora_rank": 2,
        "learning_rate": 0.003,
        "eval_every": 100,
    }
    words = [f"{key}={value}" for key, value in settings.items()]
    command = [sys.executable, str(ROOT / "scripts" / "sl_trainer.py"), *words]
    trainer = subprocess.Popen(command, env=rehearsal.env, stderr=subprocess.DEVNULL)
    try:
        watch = ["--until-done", "--every", 0.2, "--wait", 60]
        code, written = on_a_terminal([tmp_path / "live", *watch])
    finally:
        trainer.wait(timeout=100)
    text = plain(written)
    assert code == 0, text
    assert "is not there yet; waiting up to 60 s" in text
    states = re.findall(r"1 run: 1 (\w+)", text)
    assert states[-1] == "finished" and "running" in states
    assert "400/400" in text and "held-out NLL" in text

    trainer = subprocess.Popen(
        [*command, f"log_path={tmp_path / 'killed'}"], env=rehearsal.env, stderr=subprocess.DEVNULL
    )
    file = tmp_path / "killed" / "metrics.jsonl"
    while not (file.exists() and file.stat().st_size) and trainer.poll() is None:
        time.sleep(0.05)
    trainer.kill()
    trainer.wait(timeout=20)
    killed = json.loads(script(tmp_path / "killed", "--json").stdout)["runs"][0]
    assert killed["state"] == "stopped"
    assert killed["reason"] == "its process ended without a final checkpoint"
