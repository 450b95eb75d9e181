"""What a sweep refuses before anything runs, and what it would run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import sweep
from tinkerlab.errors import InputError
from tinkerlab.sweeps.plan import Plan, make_plan, run_name
from tinkerlab.sweeps.spec import Spec, add_words, read_file, split_values

BASE = "base_model: tiny:llama\ntrain_file: chats.jsonl\nnum_steps: 4\nlearning_rate: 0.01\n"


def planned(tmp_path: Path, *words: str, max_runs: int = 32, **spec: object) -> Plan:
    base = tmp_path / "c.yaml"
    base.write_text(BASE)
    asked = Spec(trainer="sl_trainer.py", base_config=base, **spec)  # type: ignore[arg-type]
    add_words(asked, words)
    return make_plan(asked, max_runs)


def told(plan: Plan) -> list[dict[str, str]]:
    return [member.settings for member in plan.members]


def test_a_grid_is_every_combination(tmp_path: Path) -> None:
    plan = planned(tmp_path, "learning_rate=1e-4,3e-4", "lora_rank=16,32", "num_steps=9")
    assert [member.name for member in plan.members] == [
        "learning_rate-1e-4_lora_rank-16",
        "learning_rate-1e-4_lora_rank-32",
        "learning_rate-3e-4_lora_rank-16",
        "learning_rate-3e-4_lora_rank-32",
    ]
    assert plan.swept == ("learning_rate", "lora_rank")
    last = plan.members[-1]
    assert (last.config["learning_rate"], last.config["lora_rank"]) == (3e-4, 32)
    assert last.config["num_steps"] == 9 and last.config["run_name"] == last.name
    assert last.folder == Path("runs/sweep-sl-learning_rate-lora_rank") / last.name
    command = plan.command(last)
    assert command[0].endswith("scripts/sl_trainer.py") and command[1] == "--config"
    assert f"log_path={last.folder}" in command and "lora_rank=32" in command


def test_listed_runs_are_combined_with_the_grid(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(
        "trainer: sl_trainer.py\nbase_config: c.yaml\noutput: out\nat_once: 3\n"
        "settings: {train_batch_size: 2}\n"
        "runs:\n- {learning_rate: 1.0e-4, train_mlp: false}\n- {learning_rate: 1e-3}\n"
        "grid: {seed: [0, 1], renderer: qwen3_instruct}\n"
    )
    spec = read_file(file)
    assert (spec.at_once, spec.output) == (3, Path("out"))
    plan = planned(tmp_path, settings=spec.settings, runs=spec.runs, grid=spec.grid)
    assert told(plan) == [
        {
            "learning_rate": "0.0001",
            "train_mlp": "false",
            "seed": "0",
            "renderer": "qwen3_instruct",
        },
        {
            "learning_rate": "0.0001",
            "train_mlp": "false",
            "seed": "1",
            "renderer": "qwen3_instruct",
        },
        {"learning_rate": "1e-3", "seed": "0", "renderer": "qwen3_instruct"},
        {"learning_rate": "1e-3", "seed": "1", "renderer": "qwen3_instruct"},
    ]
    assert plan.swept == ("learning_rate", "train_mlp", "seed")  # the renderer does not vary
    assert plan.members[0].config["train_mlp"] is False
    assert all(member.config["train_batch_size"] == 2 for member in plan.members)


def test_words_win_over_the_file() -> None:
    spec = Spec(settings={"seed": "3"}, grid={"lora_rank": ["1", "2"]})
    add_words(spec, ["lora_rank=8", "seed=0,1"])
    assert (spec.settings, spec.grid) == ({"lora_rank": "8"}, {"seed": ["0", "1"]})


def test_commas_within_a_value() -> None:
    assert split_values("[a,b],[c]") == ["[a,b]", "[c]"]
    assert split_values("{a: 1,b: 2}") == ["{a: 1,b: 2}"]
    assert split_values('"a,b",c') == ['"a,b"', "c"]
    assert split_values("") == [""]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["learning_rat=1e-4,1e-3"], "unknown key 'learning_rat'; did you mean learning_rate?"),
        (["lora_rank=4,0"], "run lora_rank-0: lora_rank must be at least 1"),
        (["learning_rate=auto,1e-4"], "run learning_rate-auto: learning_rate=auto: no value for"),
        (["lora_rank=4,many"], "run lora_rank-many: .*lora_rank must be a whole number"),
        (["learning_rate=1e-4,0.0001"], "runs learning_rate-1e-4 and learning_rate-0.0001 are"),
        (["lora_rank=4,4"], "two runs have the folder .*lora_rank-4: lora_rank=4 and lora_rank=4"),
        (["renderer=a/b,a:b"], "two runs have the folder .*renderer=a/b and renderer=a:b"),
        (["run_name=a,b"], "run_name: a sweep names its runs"),
        (["log_path=x", "seed=0,1"], "log_path: a sweep names its runs"),
        (["seed=0"], "nothing to vary"),
        (["seed"], "'seed': write key=value"),
        (["seed=0,,1"], "'seed=0,,1': a value is empty"),
        (["seed=" + ",".join(map(str, range(33)))], "33 runs are more than 32; .*--max-runs 33"),
    ],
)
def test_refusals(tmp_path: Path, words: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        planned(tmp_path, *words)


def test_more_runs_where_they_are_allowed(tmp_path: Path) -> None:
    words = "seed=" + ",".join(map(str, range(33)))
    assert len(planned(tmp_path, words, max_runs=33).members) == 33


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rate: 1", "unknown key 'learning_rate'; known: trainer, base_config"),
        ("at_once: 0", "at_once must be a whole number of at least 1"),
        ("grid: [1]", "grid must be 'setting: value' lines"),
        ("grid: {seed: []}", "grid: seed has no values"),
        ("runs: {a: 1}", "runs must be a list"),
        ("runs: [1]", "runs, number 1 must be 'setting: value' lines"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(InputError, match=message):
        read_file(tmp_path / "s.yaml")


def test_trainers_are_named(tmp_path: Path) -> None:
    spec = Spec(grid={"seed": ["0", "1"]})
    with pytest.raises(InputError, match="which trainer"):
        make_plan(spec)
    spec.trainer = "train.py"
    with pytest.raises(InputError, match=r"trainer 'train.py': choose one of sl_trainer.py, rl_"):
        make_plan(spec)


@pytest.mark.parametrize(
    ("trainer", "settings"),
    [
        ("scripts/rl_trainer.py", {"dataset": "t.jsonl", "reward": "numeric"}),
        ("dpo_trainer.py", {"train_file": "p.jsonl"}),
        ("distill_trainer.py", {"dataset": "t.jsonl", "teacher": "tiny:llama"}),
    ],
)
def test_every_trainer_checks_its_own_settings(trainer: str, settings: dict[str, str]) -> None:
    spec = Spec(trainer=trainer, settings={"base_model": "tiny:llama", **settings})
    spec.settings["learning_rate"] = "1e-4"
    add_words(spec, ["lora_rank=4,8"])
    assert len(make_plan(spec).members) == 2
    add_words(spec, ["model_name=a"])
    with pytest.raises(InputError, match="unknown key 'model_name'; here it is base_model"):
        make_plan(spec)


def test_long_names_end_in_a_hash() -> None:
    one = run_name({"train_file": "x" * 200 + "a"})
    two = run_name({"train_file": "x" * 200 + "b"})
    assert len(one) == len(two) == 100 and one != two


def test_a_changed_file_is_another_run(tmp_path: Path) -> None:
    data = tmp_path / "chats.jsonl"
    data.write_text("one")
    words = ["seed=0,1", f"train_file={data}"]
    before = planned(tmp_path, *words).members[0].inputs
    data.write_text("two")
    after = planned(tmp_path, *words).members[0].inputs
    assert set(before) == {"train_file"} and before != after


def test_dry_run_prints_the_commands_and_makes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(BASE)
    words = ["--trainer", "sl_trainer.py", "--base-config", "c.yaml", "seed=0,1", "--dry-run"]
    assert sweep.main(words) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("2 runs") and "seed=1 run_name=seed-1" in out[2]
    assert sweep.main([*words, "--json"]) == 0
    assert [run["name"] for run in json.loads(capsys.readouterr().out)["runs"]] == [
        "seed-0",
        "seed-1",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["c.yaml"]
