"""The default models, the judgement, the report and the refusals, without a service."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import model_table
import pytest

import live_model_matrix_smoke as script
from tinkerlab.errors import InputError
from tinkerlab.planning.prices import read_prices
from tinkerlab.rehearsal.models.tiny import ARCHITECTURES
from tinkerlab.smoke.cells import Cell, Settings
from tinkerlab.smoke.families import FAMILIES, choose
from tinkerlab.smoke.judging import EXPECTED, judge_sampling, judge_training
from tinkerlab.smoke.record import Record, summary
from tinkerlab.smoke.reward import lower_case_share

KINDS = {"base": "base", "instruction": "instruct", "hybrid": "hybrid", "reasoning": "thinking"}
SERVICE = "https://service.example"


@pytest.fixture(autouse=True)
def no_credential(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_default_models_are_of_their_family(family: str) -> None:
    known = model_table.attributes()
    prices = read_prices()
    for name in FAMILIES[family].candidates:
        assert model_table.kind(known[name]) == KINDS[family]
        assert prices.of(name).train < 0.6  # USD per million tokens: one of the cheap ones
    assert FAMILIES[family].stand_in.removeprefix("tiny:") in ARCHITECTURES


def test_the_first_candidate_that_is_served() -> None:
    first, second = FAMILIES["hybrid"].candidates
    assert choose(["hybrid"], {}, {first, second}) == {"hybrid": first}
    assert choose(["hybrid"], {}, {second, "other"}) == {"hybrid": second}
    assert choose(["hybrid"], {}, {"other"}) == {"hybrid": first}
    assert choose(["hybrid"], {"hybrid": "mine"}, {first}) == {"hybrid": "mine"}


def test_the_reward_varies() -> None:
    assert lower_case_share("abC1") == 0.5
    assert lower_case_share("") == 0 and lower_case_share("Ä 7") == 0


def cell(method: str = "sft", **changes: Any) -> Cell:
    return Cell("base", method, "Qwen/Qwen3-8B-Base", Settings("hosted", **changes))


def run_folder(folder: Path, method: str, **wrong: Any) -> Path:
    """A run of two steps that is sound but for ``wrong``."""
    good = dict.fromkeys(EXPECTED[method], 0.5)
    rows = [{"step": step, **good} for step in (0, 1)]
    rows[1].update(wrong.get("last_row", {}))
    for key in wrong.get("without", ()):
        del rows[1][key]
    rows = rows[: wrong.get("rows", 2)]
    saved = {
        "name": "final", "step": 2, "epoch": 0, "batch": 2, "final": True,
        "state_path": "tinker://r/weights/final", "sampler_path": "tinker://r/sampler_weights/f",
        **wrong.get("saved", {}),
    }  # fmt: skip
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "checkpoints.jsonl").write_text(json.dumps(saved) + "\n")
    return folder


@pytest.mark.parametrize("method", EXPECTED)
def test_a_sound_run_passes(tmp_path: Path, method: str) -> None:
    found = judge_training(method, run_folder(tmp_path / "run", method), 0, "", 2)
    assert found.status == "passed" and all(found.checks.values()) and found.reason == ""
    assert found.saved == ["tinker://r/weights/final", "tinker://r/sampler_weights/f"]


@pytest.mark.parametrize(
    ("method", "wrong", "check", "reason"),
    [
        ("sft", {"last_row": {"train_mean_nll": math.nan}}, "loss_finite", "is not finite"),
        ("grpo", {"last_row": {"optim/loss": math.inf}}, "loss_finite", "optim/loss is not"),
        ("sft", {"rows": 1}, "metrics", "1 rows for 2 steps"),
        ("grpo", {"without": ["optim/entropy"]}, "metrics", "lacks optim/entropy"),
        ("sft", {"saved": {"step": 1}}, "checkpoint", "no final checkpoint of step 2"),
        ("sft", {"saved": {"final": False}}, "checkpoint", "no final checkpoint"),
        ("sft", {"saved": {"sampler_path": None}}, "checkpoint", "no final checkpoint"),
    ],
)
def test_each_check_fires(
    tmp_path: Path, method: str, wrong: dict[str, Any], check: str, reason: str
) -> None:
    found = judge_training(method, run_folder(tmp_path / "run", method, **wrong), 0, "", 2)
    assert found.status == "failed" and reason in found.reason
    assert [name for name, holds in found.checks.items() if not holds] == [check]


def test_a_damaged_run_folder_fails(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", "sft")
    (folder / "metrics.jsonl").write_text('nonsense\n{"step": 1}\n')
    found = judge_training("sft", folder, 0, "", 2)
    assert found.status == "failed" and "not a JSON object" in found.reason


def test_how_a_trainer_ended(tmp_path: Path) -> None:
    found = judge_training("sft", tmp_path, 1, "failed: the service stopped", 2)
    assert (found.status, found.reason) == ("failed", "exit code 1; failed: the service stopped")
    assert judge_training("sft", tmp_path, -9, "", 2).reason == "signal 9"


def test_no_signal_is_told_from_failure(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "a", "grpo", last_row={"env/all/by_group/frac_mixed": 0})
    assert judge_training("grpo", folder, 0, "", 2).status == "passed"  # one step had signal
    rows = [{"step": s, **dict.fromkeys(EXPECTED["grpo"], 0)} for s in (0, 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert judge_training("grpo", folder, 0, "", 2).status == "no signal"

    def refused(**changes: Any) -> str:
        document = {"groups_with_signal": 0, "grader_errors": 0.0, "message": "too easy", **changes}
        (folder / "preflight.json").write_text(json.dumps(document))
        return judge_training("grpo", folder, 1, "said", 2).status

    assert refused() == "no signal"
    assert refused(groups_with_signal=1) == "failed"  # it began, and broke later
    assert refused(grader_errors=0.5) == "failed"
    (folder / "preflight.json").write_text("{")
    assert judge_training("grpo", folder, 1, "said", 2).status == "failed"


@pytest.mark.parametrize(
    ("code", "printed", "reason"),
    [
        (1, "", "exit code 1; said"),
        (0, "", "no reply in the answer"),
        (0, '{"prompts": []}', "no reply in the answer"),
        (0, '{"prompts": [{"replies": {"base": [{"text": "x", "tokens": 1}]}}]}', "no reply in"),
        (0, '{"prompts": [{"replies": {"final": [{"text": "", "tokens": 0}]}}]}', "no tokens"),
    ],
)
def test_a_checkpoint_that_does_not_answer(
    tmp_path: Path, code: int, printed: str, reason: str
) -> None:
    found = judge_training("sft", run_folder(tmp_path / "run", "sft"), 0, "", 2)
    judge_sampling(found, code, printed, "said")
    assert found.status == "failed" and found.checks["sampled"] is False
    assert found.reason.startswith("can't sample from the checkpoint: ") and reason in found.reason


def test_an_earlier_pass_counts_only_for_the_same_settings(tmp_path: Path) -> None:
    record = Record(tmp_path / "r.json")
    record.note(cell(), {"status": "passed"})
    record.write([cell()], 0)
    again = Record(tmp_path / "r.json")
    assert again.passed(cell())
    assert not again.passed(cell(lora_rank=16)) and not again.passed(cell("grpo"))
    other = Cell("base", "sft", "Qwen/Qwen3-8B-Base", Settings("rehearsal"))
    assert not again.passed(other)
    # Nor does it make a report of other settings look done.
    assert summary(again.rows, [other], 0)["counts"] == {"not run": 1}
    assert not summary(again.rows, [other], 0)["ok"]


def test_the_price_is_that_of_its_tokens() -> None:
    """Worked out by hand, for Qwen3-8B-Base: 0.13, 0.40 and 0.40 USD per million tokens."""
    # SFT: 2 x 4 rows of 140 tokens trained; two replies of 96 tokens to a prompt of 120.
    assert cell().price(read_prices()) == pytest.approx(
        (8 * 140 * 0.40 + 240 * 0.13 + 192 * 0.40) / 1e6
    )
    # GRPO: 2 steps of 2 x 4 samples trained, and sampled with 8 more before the first step; of
    # each group's prompts one is read and three come from the cache, at a fifth.
    prompts = 6 * 120 * (1 + 3 * 0.2) + 240
    assert cell("grpo").price(read_prices()) == pytest.approx(
        (16 * 216 * 0.40 + prompts * 0.13 + (24 * 96 + 192) * 0.40) / 1e6
    )


def test_dry_run_starts_nothing(capsys, tmp_path: Path) -> None:
    assert script.main(["--dry-run", "--families", "base", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["service"] == "rehearsal" and document["no_price"] == 0
    assert [row["cell"] for row in document["cells"]] == ["base-sft", "base-grpo"]
    assert 0 < document["hosted_usd_at_most"] < 0.01
    assert script.main(["--dry-run", "--models", "base=me/mine", "--methods", "sft"]) == 0
    shown = capsys.readouterr().out
    assert "me/mine" in shown and "no price known" in shown and "and 1 without a price" in shown
    assert list(tmp_path.iterdir()) == []


def test_a_key_chooses_the_service(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-not-a-real-key")
    script.main(["--dry-run"])
    assert "would run on: hosted" in capsys.readouterr().out
    script.main(["--dry-run", "--rehearse"])
    assert "would run on: rehearsal" in capsys.readouterr().out
    monkeypatch.setenv("TINKER_BASE_URL", SERVICE)
    script.main(["--dry-run"])
    assert f"would run on: {SERVICE}" in capsys.readouterr().out
    with pytest.raises(InputError, match="--fault needs a rehearsal"):
        script.main(["--fault", "429"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models", "base"], "--models base: write FAMILY=NAME"),
        (["--models", "odd=x"], "with a family of base, instruction, hybrid, reasoning"),
        (["--models", "base="], "write FAMILY=NAME"),
        (["--models", "base=a", "base=b"], "names base twice"),
        (["--families", "hybrid", "--models", "base=a"], "names base, which --families leaves"),
        (["--max-tokens", "0"], "--max-tokens must be at least 1"),
        (["--lora-rank", "0"], "--lora-rank must be at least 1"),
        (["--group-size", "1"], "--group-size must be at least 2"),
        (["--at-once", "0"], "--at-once must be at least 1"),
        (["--allow-failures", "-1"], "--allow-failures must be at least 0"),
        (["--time-limit", "nan"], "--time-limit must be above 0"),
        (["--output", "."], "is a folder; name a file"),
        (["--output", "report.txt"], "end it in .json"),
        (["--output", "mine.json"], "mine.json is no report of this script"),
        (["--output", "rows.json"], "rows.json is no report of this script"),
        (["--output", "mine.json/r.json"], "mine.json"),
        (["--fault", "gremlins", "--families", "base"], "no fault 'gremlins'"),
    ],
)
def test_bad_input(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "mine.json").write_text('{"mine": 1}')
    (tmp_path / "rows.json").write_text('{"kind": "tinker model matrix", "cells": {"a": {}}}')
    with pytest.raises(InputError) as refused:
        script.main(arguments)
    assert message in str(refused.value) and "\n" not in str(refused.value)
    assert (tmp_path / "mine.json").read_text() == '{"mine": 1}'


def test_an_unknown_family_is_bad_usage(capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        script.main(["--families", "dense"])
    assert stop.value.code == 2 and "invalid choice" in capsys.readouterr().err
