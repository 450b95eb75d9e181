"""The script itself: what it prints, where its pairs come from, and how it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dpo_tools import pairs, write

import dpo_trainer
from tinkerlab.errors import InputError

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "dpo_trainer.py"
BUILDER = """
import chz, datasets, json
from tinker_cookbook.preference.preference_datasets import ComparisonDatasetBuilder
from tinker_cookbook.preference.types import Comparison, LabeledComparison

@chz.chz
class Mine(ComparisonDatasetBuilder):
    path: str = "pairs.jsonl"

    def get_train_and_test_datasets(self):
        rows = [json.loads(line) for line in open(self.path)]
        return datasets.Dataset.from_list(rows[:-4]), datasets.Dataset.from_list(rows[-4:])

    def example_to_labeled_comparison(self, row):
        if row["prompt"].startswith("Add 3 "):
            return None
        ask = [{"role": "user", "content": row["prompt"]}]
        a, b = ([{"role": "assistant", "content": row[k]}] for k in ("rejected", "chosen"))
        return LabeledComparison(Comparison(ask, a, b), "B")

class Other: pass
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "pairs.jsonl", pairs())
    Path("mine.py").write_text(BUILDER)
    return tmp_path


@pytest.fixture
def use(rehearsal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TINKER_BASE_URL", "TINKER_API_KEY"):
        monkeypatch.setenv(name, rehearsal.env[name])


def settings(**changes: Any) -> list[str]:
    values = {
        "base_model": "tiny:llama",
        "train_file": "pairs.jsonl",
        "renderer": "qwen3_instruct",
        "num_steps": 2,
        "train_batch_size": 2,
        "learning_rate": 0.003,
        "lora_rank": 2,
        "max_seq_len": 128,
        **changes,
    }
    return [f"{key}={value}" for key, value in values.items() if value is not None]


def test_help_shows_an_example_and_imports_nothing_heavy() -> None:
    code = (
        "import sys, dpo_trainer\n"
        "try: dpo_trainer.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'tinker', 'tinker_cookbook', 'rich'}\n"
        "sys.exit(1 if heavy & set(sys.modules) else 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(SCRIPT.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0
    assert "python scripts/dpo_trainer.py --config" in result.stdout


def test_a_mistake_is_one_line_and_exit_2(folder: Path) -> None:
    result = subprocess.run(
        [sys.executable, str(SCRIPT), "base_model=m", "train_file=pairs.jsonl", "beta=1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert "did you mean dpo_beta?" in result.stderr and result.stderr.count("\n") == 1


def test_json_is_one_document(folder: Path, use: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert dpo_trainer.main([*settings(), "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["status"] == "complete" and document["steps"] == 2
    assert document["results"]["path"] == "runs/dpo/results"
    assert "[[It is" in captured.err and "step 2/2  loss" in captured.err
    assert dpo_trainer.main(settings()) == 0
    assert "already complete after 2 steps; held-out margin 0.0000 ->" in capsys.readouterr().out


def test_a_dry_run_writes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dpo_trainer.main([*settings(), "--dry-run", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["status"] == "checked"
    assert (document["train_pairs"], document["held_out_pairs"]) == (22, 2)
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_file": "none.jsonl"}, "none.jsonl: No such file"),
        ({"train_file": "."}, "Is a directory"),
        ({"train_file": "mine.py"}, "rows can't be used"),
        ({"val_file": "pairs.jsonl"}, "24 of 24 evaluation rows also stand in the training data"),
        ({"train_batch_size": 40}, "set train_batch_size=22 or less"),
        ({"renderer": "qwen33"}, "qwen33"),
        ({"max_seq_len": 20}, "24 pairs are too long"),
        ({"load_checkpoint_path": "nowhere"}, "neither a tinker://<run>/weights/<name> path"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    folder: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        dpo_trainer.main(settings(**changes))
    assert message in str(caught.value)
    assert not (folder / "runs").exists()


def test_pairs_with_identical_sides_are_refused_by_line_or_skipped(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = {"prompt": "Name a colour.", "chosen": "Blue.", "rejected": "Blue."}
    write(folder / "pairs.jsonl", [*pairs(), same])
    with pytest.raises(InputError, match="line 25: chosen and rejected are identical"):
        dpo_trainer.main(settings())
    assert dpo_trainer.main([*settings(skip_bad_rows="true"), "--dry-run"]) == 0
    assert "24 pairs, 1 bad" in capsys.readouterr().err


def test_pairs_of_a_comparison_builder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = {"train_file": None, "comparison_builder": "mine.py:Mine"}
    assert dpo_trainer.main([*settings(**mine), "--dry-run", "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert (document["train_pairs"], document["held_out_pairs"]) == (19, 4)
    assert "1 rows that the builder passes over" in captured.err
    assert "[[It is 1." in captured.err  # label B: the chosen side
    limited = settings(**mine, max_train_rows=10)
    assert dpo_trainer.main([*limited, "--dry-run"]) == 0
    assert "10 of 20 rows not read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("builder", "arguments", "message"),
    [
        ("mine.py:None", None, "mine.py has no ComparisonDatasetBuilder 'None'"),
        ("mine.py:Other", None, "mine.py has no ComparisonDatasetBuilder 'Other'"),
        ("none.py:Mine", None, "FileNotFoundError: no file none.py"),
        ("no_such_module:Mine", None, "ModuleNotFoundError"),
        ("mine.py:Mine", "{paht: x}", "Mine has no field 'paht'; it has"),
        ("mine.py:Mine", "{path: none}", "its data can't be had: FileNotFoundError"),
    ],
)
def test_a_wrong_builder_is_one_line(
    folder: Path, builder: str, arguments: str | None, message: str
) -> None:
    changes = {"comparison_builder": builder, "comparison_builder_args": arguments}
    with pytest.raises(InputError) as caught:
        dpo_trainer.main(settings(train_file=None, **changes))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
