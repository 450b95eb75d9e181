"""analyze_run.py as it is called: real reports, bad input, --watch, --html, --json."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

import analyze_run
from tinkerlab.errors import InputError

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "analyze_run.py"


def lines(file: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def said(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> dict[str, Any]:
    code = analyze_run.main([*map(str, argv), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert code == (0 if document["ok"] else 1)
    return document


def causes(document: dict[str, Any]) -> list[str]:
    return [finding["cause"] for finding in document["findings"]]


def sft_row(step: int, total: int, loss: float, **more: Any) -> dict[str, Any]:
    rate = 2e-4 * (1 - step / total)
    row = {"step": step, "epoch": 0, "progress": step / total, "learning_rate": rate}
    return row | {"train_mean_nll": loss, "time/step": 3.0} | more


# --- kinds of public reports ------------------------------------------------------------------


def test_a_cookbook_resume_that_trains_two_steps_twice(tmp_path: Path, capsys) -> None:
    first = [sft_row(step, 20, 2.9 - 0.09 * step) for step in range(8)]
    again = [sft_row(step, 20, 2.85 - 0.09 * step) for step in range(6, 20)]
    lines(tmp_path / "metrics.jsonl", first + again)
    lines(
        tmp_path / "checkpoints.jsonl",
        [
            {"name": "000006", "batch": 6, "epoch": 0, "state_path": "tinker://a/weights/000006"},
            {"name": "final", "batch": 20, "epoch": 0, "state_path": "tinker://a/weights/final"},
        ],
    )
    document = said(capsys, tmp_path)
    (finding,) = document["findings"]
    assert finding["cause"] == "resume-replays-batch"
    assert "steps 6-7 trained twice" in finding["what"]
    assert "set `batch` of that record to 8" in finding["fix"]


def test_a_rate_ten_times_the_formula_and_half_a_last_line(tmp_path: Path, capsys) -> None:
    losses = [2.4, 2.2, 2.6, 3.9, 7.2, 11.8, float("nan"), float("nan")]
    rows = [sft_row(i, 40, loss, learning_rate=0.0047) for i, loss in enumerate(losses)]
    file = lines(tmp_path / "metrics.jsonl", rows)
    with file.open("a") as out:
        out.write('{"step": 8, "train_me')
    document = said(capsys, tmp_path)
    assert causes(document)[0] == "lr-too-high"
    assert {"loss-not-finite", "loss-diverged"} <= set(causes(document))
    assert any("half written" in note for note in document["notes"])
    nan = next(f for f in document["findings"] if f["cause"] == "loss-not-finite")
    assert nan["where"] == "step 6"


def test_every_reply_at_max_tokens(tmp_path: Path, capsys) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"model_name": "Qwen/Qwen3-8B", "renderer_name": "qwen3", "max_tokens": 256})
    )
    rows = [
        {
            "progress/batch": step,
            "env/all/reward/total": 0.0,
            "optim/entropy": 0.9,
            "optim/lr": 4e-5,
            "env/all/ac_tokens_per_turn": 256.0,
            "env/all/by_group/frac_all_bad": 1.0,
            "env/all/by_group/frac_mixed": 0.0,
        }
        for step in range(12)
    ]
    lines(tmp_path / "metrics.jsonl", rows)
    document = said(capsys, tmp_path)
    assert causes(document) == ["replies-truncated", "reward-groups-all-equal"]
    assert "max_tokens=256" in document["verdict"]


def test_right_answers_that_end_with_eos_graded_zero(tmp_path: Path, capsys) -> None:
    rows = [
        {
            "example_id": f"aime-{index}",
            "reward": 0.0,
            "metrics": {"correct": 0.0},
            "logs": {
                "expected": str(113 + index),
                "output": f"so it is \\boxed{{{113 + index}}}.",
                "parse_termination": "eos",
            },
        }
        for index in range(8)
    ]
    lines(tmp_path / "aime" / "trajectories.jsonl", rows)
    (tmp_path / "aime" / "result.json").write_text(
        json.dumps({"name": "aime_2025", "score": 0.0, "num_examples": 8, "num_correct": 0})
    )
    document = said(capsys, tmp_path)
    assert causes(document) == ["eos-taken-for-parse-failure"]
    assert "aime_2025" in document["findings"][0]["where"]


# --- healthy ----------------------------------------------------------------------------------


def healthy_rows(count: int, total: int) -> list[dict[str, Any]]:
    return [
        sft_row(step, total, 1 + 1.5 / (1 + step / 3) + 0.02 * (-1) ** step)
        for step in range(count)
    ]


def test_a_healthy_run_is_silent_and_exits_0(tmp_path: Path, capsys) -> None:
    lines(tmp_path / "metrics.jsonl", healthy_rows(20, 40))
    assert analyze_run.main([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("OK: ")
    assert "20 steps" in out


def test_unknown_keys_and_odd_values_are_tolerated(tmp_path: Path, capsys) -> None:
    rows = [
        row | {"my/key": 3, "text": "x", "list": [1], "none": None, "flag": True, "big": 10**400}
        for row in healthy_rows(12, 40)
    ]
    lines(tmp_path / "metrics.jsonl", rows)
    assert causes(said(capsys, tmp_path)) == []


def test_runs_with_other_loss_weights_are_not_comparable(tmp_path: Path, capsys) -> None:
    for name, tokens in (("a", 8.0), ("b", 700.0), ("c", 8.0)):
        rows = [
            row | {"num_sequences": 8, "num_loss_tokens": tokens} for row in healthy_rows(9, 20)
        ]
        lines(tmp_path / name / "metrics.jsonl", rows)
    argv = (tmp_path / "a", "--against")
    assert causes(said(capsys, *argv, tmp_path / "b")) == ["loss-scales-differ"]
    assert causes(said(capsys, *argv, tmp_path / "c")) == []


# --- bad input --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no such folder"),
        (b"", "empty"),
        (b"\x00\x01\x02\xff\n\x00\x00\n", "not a JSON object"),
        (b"step,loss\n0,1.5\n", "not a JSON object"),
        (b"[1, 2]\n", "not a JSON object"),
        (b'{"foo": 1}\n' * 5, "none of its metrics is known"),
        (b"{}\n" * 5, "no numbers at all"),
        (b'{"step": 0, "tra', "nothing is logged yet"),
        (b"[" * 100_000 + b"\n", "not a JSON object"),
    ],
)
def test_a_bad_metrics_file_is_one_line(tmp_path: Path, content: bytes | None, words: str) -> None:
    file = tmp_path / "metrics.jsonl"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        analyze_run.main([str(file)])
    assert "\n" not in str(caught.value)


def test_odd_values_in_every_file_are_tolerated(tmp_path: Path, capsys) -> None:
    odd = {
        "checkpoints.jsonl": '{"name": 3, "batch": "x", "epoch": null}\n[]\n',
        "attempts.jsonl": '{"first_step": "x"}\n',
        "config.json": '{"learning_rate": "auto", "lr_schedule": 3, "ttl_seconds": "7d"}',
        "i/train_rollout_summaries.jsonl": '{"steps": [1, {"ac_len": "x", "logs": 3}]}\n',
        "e/trajectories.jsonl": '{"turns": 3, "logs": [], "reward": "x"}\n{"turns": [3]}\n',
        "e/result.json": '{"score": "x", "num_examples": "y"}',
    }
    for name, text in odd.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    rows = healthy_rows(12, 40)
    rows[0] |= {"step": -5}
    rows[1] |= {"step": 1e300}
    lines(tmp_path / "metrics.jsonl", rows)
    said(capsys, tmp_path)


def test_nothing_but_nan(tmp_path: Path, capsys) -> None:
    row = {"train_mean_nll": float("nan"), "learning_rate": float("nan"), "progress": float("nan")}
    lines(tmp_path / "metrics.jsonl", [{"step": step, **row} for step in range(20)])
    assert causes(said(capsys, tmp_path)) == ["loss-not-finite"]


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InputError, match=r"holds no metrics\.jsonl"):
        analyze_run.main([str(tmp_path)])


@pytest.mark.parametrize("name", ["config.json", "result.json"])
def test_a_broken_json_file_is_named(tmp_path: Path, name: str) -> None:
    lines(tmp_path / "metrics.jsonl", healthy_rows(5, 40))
    (tmp_path / name).write_text('{"half": ')
    with pytest.raises(InputError, match=f"{name}: not JSON"):
        analyze_run.main([str(tmp_path)])


@pytest.mark.parametrize(
    "argv", [["--watch", "0"], ["--until-step", "3"], ["--html", "no/such/folder/x.html"]]
)
def test_a_senseless_option_is_refused(tmp_path: Path, argv: list[str]) -> None:
    lines(tmp_path / "metrics.jsonl", healthy_rows(5, 40))
    with pytest.raises(InputError):
        analyze_run.main([str(tmp_path), *argv])


def test_as_a_process_a_missing_run_is_exit_2_and_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path / "none"), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


# --- --watch and --html -----------------------------------------------------------------------


def test_watch_prints_a_finding_when_it_arises_and_ends_at_the_step(tmp_path: Path, capsys) -> None:
    file = lines(tmp_path / "metrics.jsonl", healthy_rows(10, 40))

    def goes_on() -> None:
        for step in range(10, 16):
            time.sleep(0.05)
            loss = 1.2 if step < 13 else float("nan")
            with file.open("a") as out:
                out.write(json.dumps(sft_row(step, 40, loss)) + "\n")

    writer = threading.Thread(target=goes_on)
    writer.start()
    code = analyze_run.main([str(tmp_path), "--watch", "0.02", "--until-step", "15"])
    writer.join()
    out, err = capsys.readouterr()
    assert code == 1
    assert out.count("problem [loss-not-finite]") == 2  # when it arose, and in the last report
    assert "step 15" in err


def test_watch_ends_at_the_final_checkpoint(tmp_path: Path, capsys) -> None:
    lines(tmp_path / "metrics.jsonl", [row | {"epoch": 0} for row in healthy_rows(20, 20)])
    lines(tmp_path / "checkpoints.jsonl", [{"name": "final", "batch": 20, "epoch": 0}])
    assert analyze_run.main([str(tmp_path), "--watch", "60"]) == 0


def test_watch_reads_a_file_that_a_resume_has_cut(tmp_path: Path) -> None:
    from tinkerlab.diagnosis.run_analysis.run import open_run

    file = lines(tmp_path / "metrics.jsonl", healthy_rows(20, 40))
    run = open_run(tmp_path)
    run.read()
    lines(file, healthy_rows(12, 40))
    run.read()
    assert run.metrics.rows == 12


def test_the_page_is_self_contained_and_escapes_what_models_wrote(tmp_path: Path, capsys) -> None:
    markup = "<tool_call><script>alert(1)</script>"
    rows = [
        {
            "iteration": 0,
            "group_idx": index // 4,
            "total_reward": float(index % 2),
            "steps": [{"ac_len": 9 + index, "metrics": {}, "logs": {"reply": markup}}],
        }
        for index in range(12)
    ]
    lines(tmp_path / "run" / "train_rollout_summaries.jsonl", rows)
    lines(tmp_path / "run" / "metrics.jsonl", healthy_rows(20, 40))
    (tmp_path / "run" / "config.json").write_text('{"api_key": "tml-secretsecret123"}')
    page = tmp_path / "page.html"
    assert analyze_run.main([str(tmp_path / "run"), "--html", str(page)]) == 1
    text = page.read_text()
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org", "")
    assert text.count("<svg") == 3
    assert "tml-secret" not in text
    assert "tool-calls-not-parsed" in text


def test_a_lock_held_by_a_trainer_is_told(tmp_path: Path, capsys) -> None:
    from tinkerlab.runs.folder import RunFolder

    lines(tmp_path / "metrics.jsonl", healthy_rows(10, 40))
    with RunFolder(tmp_path).locked():
        document = said(capsys, tmp_path)
    assert f"process {os.getpid()} is training in this folder" in document["notes"]
