"""The presets against the installed inspect_evals, and what is refused before anything runs."""

import tomllib
from pathlib import Path

import pytest
import yaml

from tinkerlab.errors import CheckFailed, InputError
from tinkerlab.evaluation.inspect import needs, tasks
from tinkerlab.evaluation.inspect.suites import DEFAULT_FILE, choose, read, require_known

ROOT = Path(__file__).parents[3]
SUITES = read()
ENTRIES = list(SUITES.tasks.values())


def metadata_of(entry) -> tuple[dict, dict]:
    """(the eval.yaml that lists the task, the task's row in it)."""
    import inspect_evals

    for file in Path(inspect_evals.__file__).parent.glob("*/eval.yaml"):
        document = yaml.safe_load(file.read_text())
        for row in document.get("tasks") or []:
            if row["name"] == entry.short:
                return document, row
    raise AssertionError(f"no eval.yaml lists {entry.short}")


def test_the_four_suites_are_there():
    assert {"chat", "code", "tools", "safety"} <= set(SUITES.suites)
    assert set(SUITES.tasks) == {name for names in SUITES.suites.values() for name in names}


def test_every_name_is_registered_by_the_installed_package():
    known = tasks.known_names()
    assert len(known) > 100
    require_known(ENTRIES, known)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.short)
def test_what_the_file_says_of_a_task_is_what_the_package_says(entry):
    document, row = metadata_of(entry)
    assert entry.samples == row["dataset_samples"]
    assert entry.docker == bool((document.get("metadata") or {}).get("sandbox"))
    assert bool(entry.packages) == bool(document.get("dependency"))
    sources = [asset["source"] for asset in document.get("external_assets") or []]
    if entry.download:
        assert any(source.startswith(entry.download) for source in sources)
    else:
        assert not sources
    assert {*entry.judge, *entry.args} <= set(tasks.parameters(entry))


def test_the_code_of_a_task_uses_the_roles_and_values_that_the_file_names():
    import inspect_evals

    for entry in ENTRIES:
        # tau2_airline lives in tau2, every other one in a package of its own name.
        folder = Path(inspect_evals.__file__).parent / entry.short
        folder = folder if folder.is_dir() else folder.with_name(entry.short.partition("_")[0])
        source = "".join(file.read_text() for file in folder.rglob("*.py"))
        assert all(f'role="{role}"' in source for role in entry.judge_roles)
        for name in filter(None, (entry.value, entry.metric)):
            assert f'"{name}"' in source


def test_the_pins_are_those_of_the_project():
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert {needs.INSPECT, needs.INSPECT_EVALS} <= set(
        document["project"]["optional-dependencies"]["evals"]
    )
    assert needs.installed() == {
        "inspect-ai": needs.INSPECT.split("==")[1],
        "inspect-evals": needs.INSPECT_EVALS.split("==")[1],
    }


def test_choosing():
    chosen = choose(SUITES, "chat", ["gsm8k", "inspect_evals/aime2025", "bbq"])
    assert [task.short for task in chosen] == [*SUITES.suites["chat"], "aime2025", "bbq"]
    assert chosen[-1] == SUITES.tasks["bbq"]
    assert chosen[-2].name == "inspect_evals/aime2025"


@pytest.mark.parametrize(
    "suite, names, phrase",
    [
        (None, [], "--suite NAME, --task NAME"),
        ("chart", [], "did you mean chat"),
        (None, ["FILE"], r"say which of its tasks"),
        (None, ["nowhere.py@sums"], "no file nowhere.py"),
        (None, ["FILE@gsm8k", "gsm8k"], "would both be written to gsm8k/"),
    ],
)
def test_what_cannot_be_chosen(suite, names, phrase, task_file):
    names = [name.replace("FILE", str(task_file)) for name in names]
    with pytest.raises(InputError, match=phrase):
        choose(SUITES, suite, names)


def test_an_unknown_task_gets_the_nearest_names():
    with pytest.raises(InputError, match="did you mean gsm8k"):
        require_known(choose(SUITES, None, ["gsm8j"]), tasks.known_names())


@pytest.mark.parametrize(
    "change, phrase",
    [
        (lambda d: d["tasks"]["gsm8k"].update(sample=3), "no key 'sample'; did you mean samples"),
        (lambda d: d["suites"].update(mine=["gsm9k"]), "gsm9k"),
        (lambda d: d["suites"].update(mine=[]), "suite mine"),
        (lambda d: d["suites"].update(mine=5), "suite mine: must be a list"),
        (lambda d: d["tasks"].update(gsm8k=3), "task gsm8k: must be 'key: value' lines"),
        (lambda d: d["tasks"]["gsm8k"].update(samples="many"), "samples: .*integer.*'many'"),
        (lambda d: d["tasks"]["xstest"].update(judge="scorer_model"), "judge: .*tuple"),
        (lambda d: d.pop("tasks"), "needs suites and tasks"),
    ],
)
def test_a_file_of_suites_with_a_mistake(tmp_path, change, phrase):
    document = yaml.safe_load(DEFAULT_FILE.read_text())
    change(document)
    file = tmp_path / "suites.yaml"
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(InputError, match=phrase):
        read(file)


def make(task_file, name, args=(), judge=None, limit=None):
    return tasks.make(choose(SUITES, None, [f"{task_file}@{name}"]), dict(args), judge, limit)


def test_a_task_is_made_with_its_arguments(task_file):
    (made,) = make(task_file, "sums", {"length": 4})
    assert made.samples == 4
    (made,) = make(task_file, "share", limit=5)
    assert made.samples == 5 * 2  # epochs
    with pytest.raises(InputError, match=r"-T size: none of the tasks"):
        make(task_file, "sums", {"size": 4})


def test_another_text_of_the_file_is_another_task(task_file):
    (before,) = make(task_file, "sums")
    task_file.write_text(task_file.read_text() + "\n# changed\n")
    (after,) = make(task_file, "sums")
    assert before.task.version != after.task.version


@pytest.mark.parametrize("name", ["on_this_machine", "one_sample_here"])
def test_code_outside_a_sandbox_is_refused(task_file, name):
    with pytest.raises(InputError, match=r"runs what the model writes on this machine"):
        make(task_file, name)


def test_docker_that_is_not_here_is_said_at_once(task_file, monkeypatch):
    needs.docker_fault.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    try:
        with pytest.raises(InputError, match="Docker sandbox: install Docker"):
            make(task_file, "in_docker")
        with pytest.raises(InputError, match=r"humaneval needs docker.*install Docker.*--task"):
            needs.require([SUITES.tasks["humaneval"]], None, {})
    finally:
        needs.docker_fault.cache_clear()


def fake_docker(folder: Path, script: str, monkeypatch) -> None:
    (folder / "docker").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


@pytest.mark.parametrize(
    "script, fault",
    [
        ("exit 0", None),
        ('[ "$1" = compose ]', "start the Docker daemon"),
        ('[ "$1" = info ]', "install Docker Compose"),
    ],
)
def test_docker_is_tried(tmp_path, monkeypatch, script, fault):
    needs.docker_fault.cache_clear()
    fake_docker(tmp_path, script, monkeypatch)
    try:
        found = needs.docker_fault()
        assert found is None if fault is None else fault in str(found)
    finally:
        needs.docker_fault.cache_clear()


def test_a_model_that_would_grade_itself_is_refused(task_file):
    with pytest.raises(InputError, match=r"grade itself; give --judge-model"):
        make(task_file, "graded")
    assert make(task_file, "graded", judge="tinkerlab/judge/x")


@pytest.mark.parametrize("name, phrase", [("nothing", "empty"), ("sumz", "no such @task")])
def test_a_task_that_can_not_be_made(task_file, name, phrase):
    with pytest.raises(InputError, match=phrase):
        make(task_file, name)


def test_a_file_that_can_not_be_loaded(task_file):
    task_file.write_text("import no_such_package\n" + task_file.read_text())
    with pytest.raises(InputError, match=r"my_tasks.py: ModuleNotFoundError"):
        make(task_file, "sums")


def test_needs():
    judge = SUITES.tasks["strong_reject"]
    with pytest.raises(InputError, match=r"strong_reject needs judge model \(give --judge-model"):
        needs.require([judge], None, {})
    needs.require([judge], "some/model", {})
    needs.require([judge], None, {"judge_llm": "openai/gpt-4o"})
    with pytest.raises(InputError, match="judge model as user"):
        needs.require([SUITES.tasks["tau2_airline"]], None, {})
    from dataclasses import replace

    lacking = replace(judge, packages={"no_such_package": "pip install it"})
    with pytest.raises(InputError, match=r"package no_such_package \(pip install it\)"):
        needs.require([lacking], "some/model", {})


def test_a_task_of_the_package_whose_data_are_in_it():
    (made,) = tasks.make([SUITES.tasks["tau2_airline"]], {}, "tinkerlab/judge/x", None)
    assert made.samples == SUITES.tasks["tau2_airline"].samples
    (again,) = tasks.make([SUITES.tasks["tau2_airline"]], {}, "tinkerlab/judge/x", None)
    assert [s.id for s in made.task.dataset] == [s.id for s in again.task.dataset]  # not shuffled


def test_data_that_can_not_be_had(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(CheckFailed, match=r"its data come from openai/gsm8k"):
        tasks.make([SUITES.tasks["gsm8k"]], {}, None, 1)
