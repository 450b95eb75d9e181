"""The tables of the research skill's reference pages, held against the installed packages.

Where a page says that a table is whole, it is compared both ways.
"""

from __future__ import annotations

import inspect
import json
import re
import typing
from pathlib import Path
from typing import Any

import pytest
import tinker
from markdown_pages import read_page
from model_table import rows as model_rows

PAGES = Path("skills/research/references")


def table(page: str, header: str) -> list[list[str]]:
    """Rows of the table whose first header cell is ``header``, as lists of cells."""
    lines = read_page(PAGES / page).split("\n")
    start = next(
        i for i, line in enumerate(lines) if line.startswith(f"| {header} |".replace("|  |", "| |"))
    )
    found = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))])
    assert found
    return found


def spans(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# -- sdk.md ------------------------------------------------------------------------------------


def test_losses_are_all_of_the_sdk_s() -> None:
    from tinker.types.loss_fn_type import LossFnType

    named = [spans(row[0])[0] for row in table("sdk.md", "`loss_fn`")]
    assert sorted(named) == sorted(typing.get_args(LossFnType))


def test_loss_inputs_and_settings_are_those_of_the_rehearsal() -> None:
    from tinkerlab.rehearsal.engine.losses import LOSSES

    for name, inputs, _, settings in table("sdk.md", "`loss_fn`"):
        loss = LOSSES.get(spans(name)[0])
        if loss is None:
            continue
        assert set(spans(inputs)) | {"target_tokens"} == set(loss.required), name
        wanted = set(loss.defaults)
        if "as `ppo`" in settings:
            assert wanted == set(LOSSES["ppo"].defaults), name
        else:
            assert set(spans(settings)) == wanted, name


def test_exceptions_and_their_status() -> None:
    for names, status, _ in table("sdk.md", "exception"):
        for name in spans(names):
            error = getattr(tinker, name)
            assert issubclass(error, tinker.TinkerError), name
            if status.isdigit():
                assert vars(error)["status_code"] == int(status)


def test_every_exception_of_the_sdk_is_there() -> None:
    named = {name for row in table("sdk.md", "exception") for name in spans(row[0])}
    ours = {
        name
        for name, value in list(vars(tinker).items())
        if inspect.isclass(value) and issubclass(value, tinker.TinkerError)
    }
    families = {"TinkerError", "APIError", "APIStatusError", "APIResponseValidationError"}
    assert named == ours - families


def test_environment_variables_are_all_of_the_sdk_s() -> None:
    folder = Path(inspect.getfile(tinker)).parent
    source = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))
    used = set(re.findall(r"[\"'](TINKER_[A-Z_]+)[\"']", source))
    assert {spans(row[0])[0] for row in table("sdk.md", "variable")} == used


def test_clients_have_the_methods_named() -> None:
    for client, purpose, _ in table("sdk.md", "client"):
        cls = getattr(tinker, spans(client)[0])
        for name in spans(purpose):
            assert hasattr(cls, name), f"{cls.__name__}.{name}"
            assert not hasattr(getattr(cls, name), "__deprecated__"), name


def test_optimizer_defaults_are_as_told() -> None:
    params = tinker.AdamParams()
    assert (params.beta1, params.beta2, params.eps) == (0.9, 0.95, 1e-12)
    assert (params.weight_decay, params.grad_clip_norm) == (0.0, 0.0)


# -- models.md, hyperparams.md ------------------------------------------------------------------


def test_the_lineup_is_the_package_s() -> None:
    text = read_page(PAGES / "models.md").split("\n")
    assert [
        line for line in text if line.startswith("| `") and line.count("|") == 5
    ] == model_rows()


def test_renderers_named_in_the_lineup_exist() -> None:
    from tinker_cookbook import renderers

    known = inspect.getsource(renderers.get_renderer)
    for row in table("models.md", "model"):
        assert all(f'"{name}"' in known for name in spans(row[3])), row[0]


def test_learning_rates_are_the_formula_s() -> None:
    from tinker_cookbook.hyperparam_utils import get_lr

    for model, rate in table("hyperparams.md", "model"):
        assert f"{get_lr(spans(model)[0]):.2e}" == rate


def test_the_formula_is_as_written() -> None:
    from tinker_cookbook import hyperparam_utils
    from tinker_cookbook.hyperparam_utils import get_lr

    for model, exponent in (("Qwen/Qwen3-8B", 0.0775), ("meta-llama/Llama-3.1-8B", 0.781)):
        hidden = hyperparam_utils._get_hidden_size(model)
        assert get_lr(model) == pytest.approx(5e-5 * 10 * (2000 / hidden) ** exponent)


def test_parameter_counts_at_rank_32() -> None:
    from tinker_cookbook.hyperparam_utils import get_lora_param_count

    lines = read_page(PAGES / "hyperparams.md").split("\n")
    start = next(i for i, line in enumerate(lines) if "parameters at rank 32" in line)
    rows = [re.findall(r"`([^`]+)` \| ([\d.]+)", line) for line in lines[start + 2 : start + 7]]
    assert len(rows) == 5
    for ((model, millions),) in rows:
        assert f"{get_lora_param_count(model, 32) / 1e6:.1f}" == millions


def test_method_rates_are_those_of_the_recipes() -> None:
    from tinkerlab.planning.hyperparams import RECIPE_DEFAULTS

    told = {row[0].lower(): row[1] for row in table("hyperparams.md", "method")}
    for method, name in (("rl", "rl"), ("dpo", "dpo"), ("distillation", "distill")):
        assert float(told[method].split(";")[0]) == RECIPE_DEFAULTS[name][0]  # type: ignore[index]


# -- cli.md --------------------------------------------------------------------------------------


def test_the_command_s_table_is_whole_and_its_options_exist() -> None:
    import click
    from tinker.cli.__main__ import main_cli

    leaves: dict[str, set[str]] = {}

    def walk(path: str, command: click.Command) -> None:
        if isinstance(command, click.Group):
            for name in command.list_commands(click.Context(command)):
                inner = command.get_command(click.Context(command), name)
                assert inner is not None
                walk(f"{path} {name}", inner)
        else:
            leaves[path] = {o for p in command.params for o in p.opts if o.startswith("--")}

    walk("tinker", main_cli)
    named = set()
    for command, does in table("cli.md", "command"):
        words = [span for span in spans(f"{command} {does}") if span.startswith("tinker ")]
        paths = {" ".join(w for w in span.split() if w.islower()) for span in words}
        assert paths <= set(leaves), paths - set(leaves)
        named |= paths
        options = {span.split()[0] for span in spans(does) if span.startswith("--")}
        allowed = set().union(*(leaves[path] for path in paths))
        assert options <= allowed, f"{command}: {options - allowed}"
    assert named == set(leaves)


# -- data.md -------------------------------------------------------------------------------------


def test_train_on_what_has_these_values() -> None:
    from tinker_cookbook.renderers import TrainOnWhat

    named = [spans(row[0])[0] for row in table("data.md", "value")]
    assert sorted(named) == sorted(member.value for member in TrainOnWhat)


def test_limits_are_the_trainers() -> None:
    from tinkerlab.data.splits import MAX_TRAIN_ROWS, MAX_VAL_ROWS, VAL_FRACTION

    text = read_page(PAGES / "data.md")
    assert f"At most {MAX_TRAIN_ROWS:,} rows" in text and f"and {MAX_VAL_ROWS:,} scored" in text
    assert VAL_FRACTION == 0.1 and "A tenth is held back" in text


# -- ops.md --------------------------------------------------------------------------------------


def test_checkpoint_records_have_these_keys() -> None:
    from tinkerlab.runs.checkpoints import CheckpointRecord

    named = {name for row in table("ops.md", "key") for name in spans(row[0])}
    record = CheckpointRecord("a", 1, 0, 0, "s", "p", True)
    assert named == set(record.to_row())


# Metric prefix of the page's table -> which trainer's run must have logged it.
METHODS = {"SFT": "sft", "RL": "rl", "DPO": "dpo", "distillation": "distill"}


@pytest.fixture(scope="module")
def logged(rehearsal: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The keys that a short run of each trainer logs, and the files that it leaves."""
    from short_runs import short_runs

    folders = short_runs(rehearsal, tmp_path_factory.mktemp("runs"))
    found = {}
    for name, folder in folders.items():
        rows = (folder / "metrics.jsonl").read_text().splitlines()
        found[name] = {key for row in rows for key in json.loads(row)}
        found[f"files of {name}"] = {path.name for path in folder.iterdir() if path.is_file()}
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_metric_keys_are_logged(logged: dict[str, set[str]]) -> None:
    lines = read_page(PAGES / "ops.md").split("\n")
    start = next(i for i, line in enumerate(lines) if line.startswith("| key | in |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    assert len(rows) > 15
    for keys, where, meaning in rows:
        methods = METHODS.values() if where == "all" else [METHODS[w] for w in where.split(", ")]
        for method in methods:
            for key in spans(keys):
                assert key in logged[method], f"{method} logs no {key}"
        if "each with `test/`" in meaning:
            assert {f"test/{key}" for key in spans(keys)} <= logged["dpo"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_run_folders_hold_these_files(logged: dict[str, set[str]]) -> None:
    named = {spans(row[0])[0]: row[1] for row in table("ops.md", "file")}
    left = {name for method in METHODS.values() for name in logged[f"files of {method}"]}
    assert {name for name in left if not name.startswith(".")} == set(named)
    for name, holds in named.items():
        where = [m for m in METHODS.values() if name in logged[f"files of {m}"]]
        if holds.startswith("RL"):
            assert where == ["rl"], name
        elif "(SFT, DPO)" in holds:
            assert where == ["sft", "dpo"], name
        else:
            assert len(where) == 4, f"{name}: only {where}"


# -- rl.md, evaluation.md ------------------------------------------------------------------------


@pytest.mark.parametrize(("page", "header"), [("rl.md", "`reward`"), ("evaluation.md", "grader")])
def test_graders_are_all_of_ours(page: str, header: str) -> None:
    from tinkerlab.grading.loading import KINDS

    named = {name for row in table(page, header) for name in spans(row[0])}
    own = {name for name in named if re.fullmatch(r"my_\w+\.py:\w+", name)}
    assert len(own) == 1
    known = set(KINDS) - {"FILE.py:FUNCTION"}
    # An evaluation may ask a judge; it takes reasoning-gym's scorers with their tasks.
    extra = {"judge", "--judge-model"} if page == "evaluation.md" else set()
    absent = {"reasoning_gym"} if page == "evaluation.md" else set()
    assert named - own == known - absent | extra


def test_rl_losses_and_defaults_of_the_page() -> None:
    from tinkerlab.training.config import field_types
    from tinkerlab.training.rl.config import RLConfig

    keys = {name for row in table("rl.md", "") for name in spans(row[0])}
    assert keys and keys <= set(field_types(RLConfig)), keys - set(field_types(RLConfig))
