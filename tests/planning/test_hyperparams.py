"""Suggested settings: the formula where there is one, a named reason where there is none."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
import tinker_cookbook
from tinker_cookbook.hyperparam_utils import get_lora_param_count

import hyperparams
from tinkerlab.errors import InputError
from tinkerlab.planning.hyperparams import (
    DISTILL_RANK,
    MIN_STEPS,
    RECIPE_DEFAULTS,
    RL_GROUP_SIZE,
    suggest,
)

RECIPES = Path(tinker_cookbook.__file__).parent / "recipes"


def values(plan) -> dict[str, float]:
    return {row.setting: row.value for row in plan.suggestions}


def numbers_of(recipe: str, *names: str) -> set[float]:
    """Numbers that the recipe gives to one of ``names``: as keyword, dict value or default."""
    found: set[float] = set()
    for node in ast.walk(ast.parse((RECIPES / recipe).read_text())):
        if isinstance(node, ast.keyword) and node.arg in names:
            pairs = [node.value]
        elif isinstance(node, ast.Dict):
            pairs = [
                value
                for key, value in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant) and key.value in names
            ]
        elif isinstance(node, ast.AnnAssign) and getattr(node.target, "id", None) in names:
            pairs = [node.value]
        else:
            continue
        constants = [node.value for node in pairs if isinstance(node, ast.Constant)]
        found |= {value for value in constants if isinstance(value, (int, float))}
    return found


@pytest.mark.parametrize("method", list(RECIPE_DEFAULTS))
def test_the_recipes_still_have_these_defaults(method) -> None:
    rate, batch, recipe = RECIPE_DEFAULTS[method]
    assert rate in numbers_of(recipe, "learning_rate")
    assert batch in numbers_of(recipe, "batch_size", "groups_per_batch")
    if method == "rl":
        assert RL_GROUP_SIZE in numbers_of(recipe, "group_size")
    if method == "distill":
        assert DISTILL_RANK in numbers_of(recipe, "lora_rank")


@pytest.mark.parametrize(
    ("model", "hidden", "exponent"),
    [("Qwen/Qwen3-8B", 4096, 0.0775), ("meta-llama/Llama-3.1-8B", 4096, 0.781)],
)
def test_the_formula_is_worked_out_by_hand(model: str, hidden: int, exponent: float) -> None:
    expected = 5e-5 * 10 * (2000 / hidden) ** exponent
    assert values(suggest(model))["learning_rate"] == pytest.approx(expected)


@pytest.mark.parametrize("model", ["openai/gpt-oss-20b", "mistralai/Mistral-7B"])
def test_a_family_without_a_formula_gets_a_start_and_a_sweep(model: str) -> None:
    plan = suggest(model)
    assert values(plan)["learning_rate"] == 2e-4
    assert any("no learning-rate formula" in note and "held-out NLL" in note for note in plan.notes)


def test_the_rank_holds_the_trained_tokens() -> None:
    model = "meta-llama/Llama-3.2-1B"
    limit = get_lora_param_count(model, 64)
    assert values(suggest(model, completion_tokens=limit))["lora_rank"] == 64
    assert values(suggest(model, completion_tokens=limit + 1))["lora_rank"] == 128
    assert values(suggest(model, completion_tokens=10))["lora_rank"] == 32
    plan = suggest(model, completion_tokens=100 * limit)
    assert values(plan)["lora_rank"] == 128
    assert any("more than" in note for note in plan.notes)


@pytest.mark.parametrize("examples", [3, 50, 500, 5_000, 50_000])
def test_batch_and_steps_fit_the_rows(examples: int) -> None:
    plan = suggest("Qwen/Qwen3-8B", examples=examples)
    batch, steps = values(plan)["train_batch_size"], values(plan)["num_steps"]
    assert 4 <= batch <= 128
    assert steps >= MIN_STEPS or any("updates" in note for note in plan.notes)
    assert steps * batch <= 4 * max(examples, 4)


def test_the_script_says_why_and_where_from(capsys) -> None:
    assert hyperparams.main(["Qwen/Qwen3-8B", "--method", "rl"]) == 0
    out = capsys.readouterr().out
    assert "group_size=16" in out and "tinker_cookbook/recipes/rl_basic.py" in out
    assert hyperparams.main(["Qwen/Qwen3-8B", "--examples", "1000", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["setting"] for row in document["suggestions"]} >= {"learning_rate", "num_steps"}


def test_nonsense_is_refused() -> None:
    with pytest.raises(InputError, match="at least 1"):
        hyperparams.main(["Qwen/Qwen3-8B", "--examples", "0"])
