"""The RLHF template: what it makes of pairs, and all three stages on a rehearsal."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from dpo_tools import pairs, write

from tinkerlab.errors import InputError
from tinkerlab.runs import checkpoints, jsonl, metrics

TEMPLATE = Path(__file__).resolve().parents[2] / "templates" / "rlhf" / "pipeline.py"


@pytest.fixture(scope="module")
def pipeline() -> Any:
    spec = importlib.util.spec_from_file_location("rlhf_pipeline", TEMPLATE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path, rehearsal: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("TINKER_BASE_URL", "TINKER_API_KEY"):
        monkeypatch.setenv(name, rehearsal.env[name])
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "pairs.jsonl", pairs())
    chats = [{"prompt": row["prompt"], "completion": row["chosen"]} for row in pairs()]
    write(tmp_path / "chats.jsonl", chats)
    return tmp_path


SMALL = [
    "model.base_model=tiny:llama",
    "model.renderer=qwen3_instruct",
    "model.lora_rank=4",
    "sft.num_steps=2",
    "reward_model.num_steps=30",
    "reward_model.learning_rate=0.01",
    "rl.max_steps=2",
    "rl.max_tokens=6",
    "rl.batch_size=2",
    "rl.eval_every=1",
]
DATA = ["--chats", "chats.jsonl", "--pairs", "pairs.jsonl"]


@pytest.mark.slow
def test_all_stages_run_and_each_begins_where_the_one_before_ended(
    folder: Path, pipeline: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    assert pipeline.main([*DATA, *SMALL]) == 0
    out = folder / "runs" / "rlhf"
    reward = metrics.read(out / "reward-model")
    assert reward[-1]["test/nll"] < reward[0]["test/nll"]
    rows = [json.loads(line) for line in (out / "rl" / "metrics.jsonl").read_text().splitlines()]
    assert "env/all/win_minus_loss" in rows[-1] and "win_rate" in rows[-1]
    config = json.loads((out / "rl" / "config.json").read_text())
    assert config["load_checkpoint_path"] == checkpoints.read(out / "sft")[-1].state_path
    judge = config["dataset_builder"]["preference_model_builder"]
    assert judge["rm_weights_path"] == checkpoints.read(out / "reward-model")[-1].sampler_path
    # The same command again has nothing to do.
    capfd.readouterr()
    assert pipeline.main([*DATA, *SMALL]) == 0
    assert capfd.readouterr().err.count("this run is complete; nothing to do") == 2


def test_pairs_stand_both_ways_round_and_split_by_prompt(folder: Path, pipeline: Any) -> None:
    from tinker_cookbook.preference.preference_datasets import ComparisonBuilderFromJsonl

    train, held_out = pipeline.write_comparisons(folder / "pairs.jsonl", folder / "out", seed=0)
    chats = jsonl.read(folder / "out" / "reward-model.jsonl")
    assert len(chats) == 2 * len(jsonl.read(train)) == 44
    assert [chat["messages"][-1]["content"] for chat in chats[:2]] == ["A", "B"]
    assert chats[0]["messages"][2] == chats[1]["messages"][4]  # the chosen reply, first and second
    labels = {row["label"] for row in jsonl.read(train)}
    assert labels == {"A", "B"}
    labeled, _ = ComparisonBuilderFromJsonl(
        train_path=str(train), test_path=str(held_out)
    ).get_labeled_comparisons()
    for row in labeled:
        chosen = row.comparison.completion_A if row.label == "A" else row.comparison.completion_B
        assert str(chosen[0]["content"]).startswith("It is")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stage", "rl"], "no checkpoint; run --stage sft first"),
        (["--pairs", "none.jsonl"], "No such file"),
        (["--pairs", "chats.jsonl"], "rows can't be used"),
        (["policy.x=1"], "write section.key=value"),
        (["--scripts", "."], "no sl_trainer.py there"),
        (["--config", "none.yaml"], "config none.yaml: No such file"),
    ],
)
def test_bad_input_is_refused(
    folder: Path, pipeline: Any, arguments: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        pipeline.main([*DATA, *SMALL, *arguments])
    assert not (folder / "runs" / "rlhf" / "sft").exists()
