"""Every recipe's config trains for two steps on data of its shape, and its reward is a true one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from recipe_shapes import PUBLISHED, SHAPES, Shape, aime, dapo, matharena, mbpp
from repository import ROOT

import rl_trainer
from tinkerlab.grading import load_grader, require_usable
from tinkerlab.grading.types import Attempt
from tinkerlab.runs import checkpoints, metrics
from tinkerlab.tasks import Task, load_tasks
from tinkerlab.training import config as configs
from tinkerlab.training.rl.config import ELSEWHERE, RLConfig
from tinkerlab.training.rl.data import load_both

RECIPES = ROOT / "templates" / "recipes"
CONFIGS = sorted(RECIPES.glob("*.yaml"))
TEMPLATES = {
    "rl_trainer.py": "rl-config.yaml",
    "dpo_trainer.py": "dpo-config.yaml",
    "distill_trainer.py": "distill-config.yaml",
    "sl_trainer.py": "training-config.yaml",
}
# A random tiny model is never right: for two steps of RL it gets a reward that varies. Below 0,
# since all its completions are cut, and zero_reward_on_limit leaves them at most 0.
VARIED = "def score(completion):\n    return sum(completion.encode()) % 101 / 101 - 1\n"
_WRITTEN = re.compile(r"^cat > (\S+) <<'EOF'\n(.*?)^EOF$", re.DOTALL | re.MULTILINE)


def load(config: Path) -> dict[str, Any]:
    return yaml.safe_load(config.read_text(encoding="utf-8"))


def trainer_of(settings: dict[str, Any]) -> str:
    for key, script in (
        ("reward", "rl_trainer.py"),
        ("teacher", "distill_trainer.py"),
        ("dpo_beta", "dpo_trainer.py"),
    ):
        if key in settings:
            return script
    return "sl_trainer.py"


def page_of(config: Path) -> Path:
    return RECIPES / f"{config.stem.removesuffix('-fast')}.md"


def write_page_files(config: Path, folder: Path) -> None:
    """The files that the recipe's page has its reader write, such as a reward of one's own."""
    for name, content in _WRITTEN.findall(page_of(config).read_text(encoding="utf-8")):
        (folder / name).write_text(content, encoding="utf-8")


def test_every_recipe_has_a_page_a_config_and_a_shape() -> None:
    assert {path.stem for path in CONFIGS} == set(SHAPES)
    pages = {path.stem for path in RECIPES.glob("*.md")}
    for config in CONFIGS:
        page = page_of(config)
        assert page.exists(), f"{config.name} has no page"
        text = page.read_text(encoding="utf-8")
        assert config.name in text and trainer_of(load(config)) in text
    assert pages <= {config.stem for config in CONFIGS}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_its_keys_are_explained(config: Path) -> None:
    settings = load(config)
    template = load(ROOT / "templates" / TEMPLATES[trainer_of(settings)])
    assert set(settings) <= set(template)
    assert settings["run_name"] == config.stem


@pytest.mark.parametrize("page", sorted(RECIPES.glob("*.md")), ids=lambda path: path.stem)
def test_a_page_says_what_a_user_must_know(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "**When to use it**" in text and "**When not**" in text
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    for wanted in ("Run it", "Starting numbers", "What good looks like", "When to stop"):
        assert wanted in headings, f"{page.name} has no section {wanted!r}"
    assert "Typical failures" in headings


REWARDED = [path for path in CONFIGS if "reward" in load(path)]
FROM_THE_HUB = [path for path in REWARDED if load(path)["dataset"].startswith("hf:")]


def replies_of(name: str, task: Task) -> tuple[list[str], list[str]]:
    """Right and wrong ones; of a generated task they follow from its answer."""
    shape = SHAPES[name]
    if shape.rows:
        return list(shape.right), list(shape.wrong)
    number = int(task.answer)
    return [str(number), f"The answer is {number}."], [str(number + 1), "", "I see."]


@pytest.mark.parametrize("config", REWARDED, ids=lambda path: path.stem)
def test_its_reward_is_a_true_one(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the reader of tasks and the grader that the recipe names."""
    monkeypatch.chdir(tmp_path)
    write_page_files(config, tmp_path)
    settings, shape = load(config), SHAPES[config.stem]
    source = shape.write(tmp_path)[0] if shape.rows else settings["dataset"]
    task = load_tasks(source)[0]
    right, wrong = replies_of(config.stem, task)
    assert right and wrong
    replies = [*right, *wrong]
    grader = load_grader(settings["reward"], timeout=settings.get("grader_timeout", 10.0))
    try:
        grades = grader.grade(
            [Attempt(reply, task.prompt, task.answer, task.row, task.place) for reply in replies]
        )
    finally:
        grader.close()
    scores = [grade.score for grade in grades]
    assert scores == [1.0] * len(right) + [0.0] * len(wrong), list(
        zip(replies, grades, strict=True)
    )
    assert [grade.error for grade in grades] == [None] * len(replies)


def sanitized(first: int, count: int) -> list[dict[str, Any]]:
    """google-research-datasets/mbpp, the sanitized part."""
    return [
        {
            "source_file": "Benchmark Questions Verification V2.ipynb",
            "task_id": row["task_id"],
            "prompt": row["text"],
            "code": row["code"],
            "test_imports": ["import math"],
            "test_list": [*row["test_list"], "assert math.pi > 3"],
        }
        for row in mbpp(first, count)
    ]


@pytest.mark.parametrize(
    ("rows", "reward", "right", "wrong"),
    [
        (aime(20, 2), "math", "so \\boxed{45}", "\\boxed{46}"),
        (aime(20, 2), "numeric", "The answer is 045.", "45 or 46"),
        (matharena(20, 2), "math", "$$\\boxed{45}$$", "I do not know"),
        (dapo(20, 2), "math", "It is 20 + 25.\nAnswer: 45", "Answer: $Answer"),
        (sanitized(2, 2), "code_tests", "def add_2(x): return x + 2", "def add_2(x): return 3"),
    ],
    ids=["aime_2024", "aime_2024-numeric", "aime_2025", "dapo", "mbpp-sanitized"],
)
def test_the_other_datasets_of_the_pages(
    rows: list[dict[str, Any]], reward: str, right: str, wrong: str, tmp_path: Path
) -> None:
    """Those that a page offers beside its config's own."""
    task = load_tasks(Shape(rows).write(tmp_path)[0])[0]
    grader = load_grader(reward)
    try:
        require_usable(grader, [task])
        grades = grader.grade(
            [Attempt(reply, task.prompt, task.answer, task.row) for reply in (right, wrong)]
        )
    finally:
        grader.close()
    assert [grade.score for grade in grades] == [1.0, 0.0]


@pytest.mark.parametrize("config", FROM_THE_HUB, ids=lambda path: path.stem)
def test_its_hub_rows_become_tasks(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The named dataset, config and split are published ones, and rows of theirs can be graded."""
    import datasets

    settings = configs.load(RLConfig, config, [], ELSEWHERE)
    shape = SHAPES[config.stem]

    def load_dataset(name: str, part: str | None, split: str, streaming: bool) -> Iterator[Any]:
        assert split in PUBLISHED[name][part] and streaming
        spec = f"hf:{name}{f':{part}' if part else ''}"
        trains = settings.dataset in (spec, f"{spec}@{split}")
        return iter(shape.rows if trains else shape.held_out)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    train, held_out = load_both(settings)
    if settings.eval_dataset:
        assert (len(train), len(held_out)) == (len(shape.rows), len(shape.held_out))
    else:
        assert train and held_out and len(train) + len(held_out) == len(shape.rows)
    assert not {task.key for task in train} & {task.key for task in held_out}
    grader = load_grader(settings.reward)
    try:
        require_usable(grader, [*train, *held_out])
    finally:
        grader.close()


@pytest.mark.parametrize("config", REWARDED, ids=lambda path: path.stem)
def test_its_reward_grades_what_a_model_says(
    config: Path,
    rehearsal: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The dry run, with the recipe's own reward: it grades every completion and never fails."""
    for name in ("TINKER_BASE_URL", "TINKER_API_KEY"):
        monkeypatch.setenv(name, rehearsal.env[name])
    monkeypatch.chdir(tmp_path)
    write_page_files(config, tmp_path)
    words = overrides(load(config), config.stem, tmp_path)
    code = rl_trainer.main(["--config", str(config), *words, "--dry-run", "--json"])
    preflight = json.loads(capsys.readouterr().out)["preflight"]
    assert (preflight["completions"], preflight["grader_errors"]) == (8, 0)
    assert code == (0 if preflight["groups_with_signal"] else 1)


def overrides(settings: dict[str, Any], name: str, folder: Path) -> list[str]:
    """What makes the recipe small and local; everything else stays as it is."""
    shape = SHAPES[name]
    words = {
        "base_model": "tiny:llama",
        "num_steps": "2",
        "learning_rate": "0.001",
        "lora_rank": "4",
    }
    train, held_out = shape.write(folder) if shape.rows else (None, None)
    if trainer_of(settings) in ("rl_trainer.py", "distill_trainer.py"):
        words |= {"groups_per_batch": "2", "group_size": "4", "max_tokens": "6"}
        words["max_eval_tasks"] = "2"
        if train:
            words["dataset"] = str(train)
        if held_out:
            words["eval_dataset"] = str(held_out)
    if trainer_of(settings) == "rl_trainer.py":
        words["preflight_groups"] = "2"
    if trainer_of(settings) in ("sl_trainer.py", "dpo_trainer.py"):
        assert train is not None
        words |= {"train_file": str(train), "train_batch_size": "2", "max_seq_len": "256"}
        words["max_val_rows"] = "4"
        if settings.get("num_epochs"):
            words["num_epochs"] = "null"
        if held_out:
            words["val_file"] = str(held_out)
    return [f"{key}={value}" for key, value in words.items()]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_two_steps(config: Path, rehearsal: Any, tmp_path: Path) -> None:
    settings = load(config)
    script = trainer_of(settings)
    words = overrides(settings, config.stem, tmp_path)
    if script == "distill_trainer.py":
        words.append(f"teacher={make_teacher(rehearsal, tmp_path)}")
    if script == "rl_trainer.py":
        (tmp_path / "varied.py").write_text(VARIED)
        words.append("reward=varied.py:score")
    done = run(
        script, ["--config", str(config), *words, "log_path=run", "--json"], rehearsal, tmp_path
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["steps"] == 2
    assert [row["step"] for row in metrics.read(tmp_path / "run")][:2] == [0, 1]
    assert checkpoints.read(tmp_path / "run")[-1].final


def make_teacher(rehearsal: Any, folder: Path) -> str:
    """A sampler checkpoint of an adapter that is not the student."""
    client = (
        rehearsal.client().create_lora_training_client(rehearsal.model, rank=4, seed=9).result()
    )
    return client.save_weights_for_sampler(f"teacher-{folder.name}").result().path


def run(
    script: str, words: list[str], rehearsal: Any, folder: Path
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / script), *words],
        cwd=folder,
        env={**os.environ, **rehearsal.env},
        capture_output=True,
        text=True,
        timeout=600,
    )
