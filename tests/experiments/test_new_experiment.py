"""The folder of an experiment: what it holds, what it records of git, what it never touches."""

from __future__ import annotations

import datetime
import hashlib
import importlib
import json
import math
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from repository import ROOT

import new_experiment
from tinkerlab import experiments
from tinkerlab.errors import InputError
from tinkerlab.training import config as configs

TODAY = datetime.date.today().isoformat()
CONFIGS = {
    "sft": ("tinkerlab.training.supervised_config", "SupervisedConfig", []),
    "rl": ("tinkerlab.training.rl.config", "RLConfig", []),
    "dpo": ("tinkerlab.training.dpo.config", "DPOConfig", []),
    "distill": ("tinkerlab.training.distill.config", "DistillConfig", []),
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def git(*arguments: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(["git", *who, *arguments], capture_output=True, check=True)
    return done.stdout.decode()


@pytest.fixture
def repository(here: Path) -> Path:
    git("init", "-q")
    (here / "train.py").write_text("print(1)\n")
    git("add", ".")
    git("commit", "-qm", "one")
    return here


@pytest.mark.parametrize("method", experiments.METHODS)
def test_config_and_notes_fit_the_method(
    method: str, capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    assert (
        new_experiment.main(["shorter", "--method", method, "--question", r"Is {{ x }} \1?"]) == 0
    )
    folder = here / "experiments" / f"{TODAY}-shorter"
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml", "notes.md", "plan.md"]

    module, cls, words = CONFIGS[method]
    loaded = configs.load(
        getattr(importlib.import_module(module), cls), folder / "config.yaml", words
    )
    template = yaml.safe_load(
        (ROOT / "templates" / experiments._TRAINERS[method][1]).read_text()  # type: ignore[index]
    )
    ours = yaml.safe_load((folder / "config.yaml").read_text())
    assert loaded.run_name == f"{TODAY}-shorter"
    assert {**ours, "run_name": template["run_name"]} == template

    notes, plan = (folder / "notes.md").read_text(), (folder / "plan.md").read_text()
    for page in (notes, plan):
        assert r"Is {{ x }} \1?" in page and f"# {'Plan: ' * (page == plan)}{TODAY}-shorter" in page
        assert "{{" not in page.replace("{{ x }}", "")
    assert f"| method | {method} |" in notes and f"runs/{TODAY}-shorter" in notes
    out = capsys.readouterr().out
    trainer = experiments._TRAINERS[method][0]  # type: ignore[index]
    assert f"{trainer} --config experiments/{TODAY}-shorter/config.yaml --dry-run" in out
    assert f"watch_run.py runs/{TODAY}-shorter --until-problem" in out
    assert "git add" in out and "rehearse.py run -- python" in out


def test_nothing_is_overwritten(here: Path) -> None:
    new_experiment.main(["a"])
    plan = here / "experiments" / f"{TODAY}-a" / "plan.md"
    plan.write_text("mine")
    with pytest.raises(InputError, match="-a exists; nothing was changed, choose another NAME"):
        new_experiment.main(["a", "--method", "rl"])
    assert plan.read_text() == "mine"


@pytest.mark.parametrize("name", ["", "a/b", "../a", "a b", "-a", "x" * 81])
def test_names_that_are_no_folder(name: str) -> None:
    with pytest.raises(InputError, match=r"NAME .*: letters, digits"):
        experiments.create(Path("experiments"), name, "sft", None)
    assert not Path("experiments").exists()


def test_a_clean_commit_is_recorded(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new_experiment.main(["a", "--json"])
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert document["git_commit"] == git("rev-parse", "HEAD").strip()
    assert (document["dirty"], document["diff_sha256"]) == (False, None)
    assert "warning" not in printed.err
    notes = (repository / document["folder"] / "notes.md").read_text()
    assert document["git_commit"] in notes and "| uncommitted changes | none |" in notes
    assert shlex.split(document["command"])[-1] == f"{document['folder']}/config.yaml"


def test_uncommitted_changes_are_warned_of_and_hashed(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "train.py").write_text("print(2)\n")
    (repository / "new.py").write_text("")
    expected = hashlib.sha256(git("diff", "HEAD").encode()).hexdigest()
    new_experiment.main(["a"])
    err = capsys.readouterr().err
    assert "warning: commit before each experiment" in err
    notes = (repository / "experiments" / f"{TODAY}-a" / "notes.md").read_text()
    assert f"1 changed and 1 untracked files; SHA-256 of git diff HEAD: {expected}" in notes


def test_outside_a_repository_and_before_the_first_commit(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(here.parent))
    new_experiment.main(["a"])
    assert "not in a git repository" in capsys.readouterr().err
    git("init", "-q")
    tree = experiments.working_tree(here)
    assert tree is not None and tree.commit is None and tree.untracked == 1


def test_items_in_the_plan_follow_from_its_formula() -> None:
    """n = 1.96^2 p (1 - p) / h^2 at p = 0.5, rounded up."""
    plan = (ROOT / "templates" / "plan.md").read_text()
    widths = re.search(r"^\| h \|(.*)\|$", plan, re.MULTILINE)
    counts = re.search(r"^\| n \|(.*)\|$", plan, re.MULTILINE)
    assert widths and counts
    h = [float(cell) for cell in widths[1].split("|")]
    n = [int(cell) for cell in counts[1].split("|")]
    assert n == [math.ceil(1.96**2 * 0.25 / width**2) for width in h]
