"""Which row of a run's metrics speaks for which checkpoint, in our trainers and the cookbook's."""

import asyncio
import json
from pathlib import Path

import pytest

from tinkerlab.errors import InputError
from tinkerlab.evaluation.selection.checkpoints import checkpoints_of, read_run
from tinkerlab.evaluation.selection.logged import nearest_rows, read_logged


@pytest.mark.parametrize(
    ("checkpoints", "rows", "found"),
    [
        ([10, 20], [0, 10, 20], {10: 10, 20: 20}),
        ([10, 20], [0, 12, 24], {10: 12, 20: 24}),
        # Half way between two it speaks for the earlier one.
        ([10, 20, 30], [0, 25, 50], {20: 25}),
        # tinker-cookbook, supervised: labels 20 and 40 hold 22 and 42 updates.
        ([22, 42, 60], [0, 20, 40], {22: 20, 42: 40}),
        # rl: the last evaluation is one step before the final checkpoint.
        ([20, 40, 50], [0, 20, 40, 49], {20: 20, 40: 40, 50: 49}),
        # Before training is the base model, whoever is nearest.
        ([4], [0], {}),
        ([4], [0, 3], {4: 3}),
    ],
)
def test_the_evaluation_of_a_checkpoint(checkpoints, rows, found):
    assert nearest_rows(checkpoints, rows) == found


def write(folder, rows, records, config=None):
    folder.mkdir()
    for name, content in (("metrics.jsonl", rows), ("checkpoints.jsonl", records)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in content))
    (folder / "config.json").write_text(json.dumps(config or {}))
    run = read_run(folder)
    found, left_out = checkpoints_of(run)
    return run, found, left_out


def test_the_cookbooks_supervised_loop(tmp_path):
    """A label is a batch in flight; the final one is labelled with the next epoch."""
    rows = [{"step": s, "epoch": s // 30, "train_mean_nll": 1.0} for s in range(60)]
    for step in range(0, 60, 10):
        rows[step]["test/nll"] = 2 - step / 100
    records = [
        {"name": "000020", "batch": 20, "epoch": 0, "sampler_path": "tinker://r/sampler_weights/a"},
        {"name": "000040", "batch": 10, "epoch": 1, "sampler_path": "tinker://r/sampler_weights/b"},
        {"name": "final", "batch": 0, "epoch": 2, "sampler_path": "tinker://r/sampler_weights/c"},
    ]
    run, found, left_out = write(tmp_path / "run", rows, records, {"submit_ahead": 1})
    assert [(c.name, c.step) for c in found] == [("000020", 22), ("000040", 42), ("final", 60)]
    assert not left_out
    logged = read_logged(run, found)
    assert logged is not None
    assert (logged.key, logged.base, logged.has_noise) == ("test/nll", 2.0, False)
    assert logged.at == {"000020": 20, "000040": 40}
    assert logged.values == {"000020": pytest.approx(1.8), "000040": pytest.approx(1.6)}


def test_the_cookbooks_rl_loop(tmp_path):
    """A label is the updates done; the last evaluation is one update before the end."""
    rows = [{"progress/batch": s, "step": s, "env/all/reward/total": 0.5} for s in range(50)]
    for step in (0, 20, 40, 49):
        rows[step]["test/env/all/reward/total"] = step / 100
    records = [
        {"name": f"{s:06d}", "batch": s, "sampler_path": f"tinker://r/sampler_weights/{s}"}
        for s in (20, 40)
    ]
    records.append({"name": "final", "batch": 50, "sampler_path": "tinker://r/sampler_weights/f"})
    run, found, _ = write(tmp_path / "run", rows, records)
    assert [c.step for c in found] == [20, 40, 50]
    logged = read_logged(run, found)
    assert logged is not None and logged.higher
    assert logged.values == {"000020": 0.2, "000040": 0.4, "final": 0.49}
    assert logged.at["final"] == 49


@pytest.mark.parametrize(
    ("key", "train_key", "higher", "best"),
    [
        ("test/accuracy", "dpo_loss", True, "final"),
        ("test/teacher_kl", "teacher_kl", False, "000010"),
        ("eval/gsm8k/score", "train_mean_nll", True, "final"),
    ],
)
def test_every_kind_of_run(key, train_key, higher, best, make_run, choose):
    run = make_run((0.2, 0.3, 0.5, 0.7, 0.9), (0.9,) * 5, key=key, train_key=train_key)
    logged = read_logged(read_run(run), checkpoints_of(read_run(run))[0])
    assert logged is not None and (logged.key, logged.higher) == (key, higher)
    code, document = choose(run)
    if higher:
        assert (code, document["chosen"]["name"]) == (0, best)
    else:
        assert code == 1  # a KL that only rises is worse than before training


def test_the_same_step_twice_is_one_checkpoint(tmp_path):
    records = [
        {"name": "000010", "step": 10, "sampler_path": "tinker://r/sampler_weights/a"},
        {
            "name": "final",
            "step": 10,
            "final": True,
            "sampler_path": "tinker://r/sampler_weights/b",
        },
        {"name": "odd", "epoch": 1, "batch": 3},
    ]
    _, found, left_out = write(tmp_path / "run", [{"step": 9, "train_mean_nll": 1.0}], records)
    assert [c.name for c in found] == ["final"]
    assert len(left_out) == 2
    assert left_out[0] == "000010: the same 10 updates as final"
    assert "record 3 (odd): how many updates it holds can't be told" in left_out[1]


def test_two_checkpoints_of_one_name(tmp_path):
    records = [{"name": "a", "step": 1}, {"name": "a", "step": 2}]
    with pytest.raises(InputError, match="two checkpoints are named 'a'"):
        write(tmp_path / "run", [], records)


def test_a_rolling_checkpoint_is_no_choice(tmp_path):
    records = [
        {"name": "000004", "batch": 4, "rolling": True, "state_path": "tinker://r/weights/a"},
        {"name": "final", "batch": 8, "sampler_path": "tinker://r/sampler_weights/b"},
    ]
    _, found, left_out = write(tmp_path / "run", [], records)
    assert [c.name for c in found] == ["final"]
    assert left_out == ["000004: a rolling checkpoint, which the run deletes again"]


@pytest.mark.slow
def test_the_cookbooks_own_supervised_loop(rehearsal, tmp_path, monkeypatch):
    """Its evaluation of every step, against an evaluation of what its checkpoints really hold."""
    import tinker_cookbook
    from tinker_cookbook.supervised import train
    from tinker_cookbook.supervised.data import FromConversationFileBuilder
    from tinker_cookbook.supervised.nll_evaluator import SamplerNLLEvaluator
    from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig

    monkeypatch.setenv("TINKER_BASE_URL", rehearsal.base_url)
    monkeypatch.setenv("TINKER_API_KEY", rehearsal.env["TINKER_API_KEY"])
    builder = FromConversationFileBuilder(
        common_config=ChatDatasetBuilderCommonConfig(
            model_name_for_tokenizer=str(rehearsal.model_dir),
            renderer_name="qwen3_instruct",
            max_length=64,
            batch_size=8,
        ),
        file_path=str(Path(tinker_cookbook.__file__).parent / "example_data/conversations.jsonl"),
        test_size=8,
    )
    config = train.Config(
        log_path=str(tmp_path / "run"),
        model_name=str(rehearsal.model_dir),
        recipe_name="selection-test",
        renderer_name="qwen3_instruct",
        dataset_builder=builder,
        learning_rate=1e-2,
        lora_rank=4,
        max_steps=11,
        save_every=3,
        eval_every=1,
    )
    asyncio.run(train.main(config))
    run = read_run(tmp_path / "run")
    found, _ = checkpoints_of(run)
    # Batches 3 and 6 were in flight, each with one more submitted ahead.
    assert [(c.name, c.step) for c in found] == [("000003", 5), ("000006", 8), ("final", 11)]
    logged = read_logged(run, found)
    assert logged is not None
    # Nothing is evaluated after the last update.
    assert logged.at == {"000003": 5, "000006": 8, "final": 10}
    held_out = builder()[1]
    assert held_out is not None
    evaluator = SamplerNLLEvaluator.from_dataset(held_out)
    for name in ("000003", "000006"):
        path = next(c.sampler_path for c in found if c.name == name)
        client = rehearsal.client().create_sampling_client(model_path=path).result()
        measured = asyncio.run(evaluator(client))["test/nll"]
        assert logged.values[name] == pytest.approx(measured, abs=1e-4)
        # The rows beside it are far enough away for a wrong one to be seen.
        beside = [logged.curve.at(logged.at[name] + offset) for offset in (-1, 1)]
        assert all(value is not None and abs(value - measured) > 0.002 for value in beside)


def test_a_logged_loss_of_few_rows_breaks_no_tie(make_run, make_results, choose):
    """1.0 against 1.13: more than 1 / sqrt(100) of it, less than 1 / sqrt(18)."""
    for name in ("000010", "final"):
        parent = make_results(name, 50).parent
    for rows, chosen in ((18, "000010"), (100, "final")):
        config = {"resolved": {"held_out_rows": rows}}
        run = make_run((3.0, 1.13, 1.1, 1.05, 1.0), config=config, folder=f"of-{rows}")
        assert choose(run, "--results", parent)[1]["chosen"]["name"] == chosen


def test_the_next_command_measures_what_decided(make_run, make_results, choose):
    run = make_run((3.0, 2.0, 1.5, 1.9, 2.4))
    command = next(iter(choose(run)[1]["commands"].values()))
    assert command.startswith("python scripts/evaluate.py nll --base-model tiny:llama --checkpoint")
    parent = make_results("final", 50).parent
    _, document = choose(run, "--results", parent, "--overwrite")
    command = next(iter(document["commands"].values()))
    assert command.startswith("python scripts/eval_offline.py --model tiny:llama --checkpoint")
