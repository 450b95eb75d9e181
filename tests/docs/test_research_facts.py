"""The tables of the research skill's reference pages, held against the installed packages.

Where a page says that a table is whole, it is compared both ways. The SDK's page and the tinker
command's are in ``test_sdk_page``, what runs leave in ``test_run_facts``.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from markdown_pages import read_page
from model_table import rows as model_rows
from page_tables import PAGES, spans, table

# -- models.md ------------------------------------------------------------------------------------

COLUMNS = ("thinks", "does not think", "by effort")


def test_the_lineup_is_the_package_s() -> None:
    text = read_page(PAGES / "models.md").split("\n")
    assert [
        line for line in text if line.startswith("| `") and line.count("|") == 7
    ] == model_rows()


def renderer_names() -> list[str]:
    """Every name that ``get_renderer`` makes something of."""
    from tinker_cookbook import renderers

    return re.findall(r'name == "(\w+)"', inspect.getsource(renderers.get_renderer))


def test_renderers_are_all_of_the_cookbook_s() -> None:
    rows = table("models.md", "family")
    named = [name for row in rows for cell in row[1:4] for name in spans(cell)]
    assert sorted(named) == sorted(renderer_names())
    lineup = {name for row in table("models.md", "model") for name in spans(row[5])}
    assert lineup <= set(named)


def make(name: str) -> Any:
    """A renderer over a tokenizer that knows nothing: enough to ask what the renderer is."""
    from tinker_cookbook import renderers

    tokenizer = MagicMock()
    tokenizer.encode.return_value = [1]
    tokenizer.convert_tokens_to_ids.return_value = 1
    return renderers.get_renderer(name, tokenizer)


@pytest.mark.parametrize(
    "row",
    [row for row in table("models.md", "family") if row[0] != "Inkling"],
    ids=lambda row: row[0],
)
def test_one_growing_text_is_what_the_renderers_say(row: list[str]) -> None:
    names = [name for cell in row[1:4] for name in spans(cell)]
    growing = [name for name in names if make(name).has_extension_property]
    told = names if row[4] == "all three" else spans(row[4])
    assert sorted(told) == sorted(growing)
    assert told or row[4] == "none"


def test_renderers_that_refuse_thinking_stand_under_does_not_think() -> None:
    rows = [row for row in table("models.md", "family") if row[0] != "Inkling"]
    for row in rows:
        thinking = [name for cell in (row[1], row[3]) for name in spans(cell)]
        assert not any(getattr(make(name), "disables_thinking", False) for name in thinking)
        disabled = [name for name in spans(row[2]) if name.endswith("_disable_thinking")]
        if not row[0].startswith("DeepSeek"):
            assert all(make(name).disables_thinking for name in disabled), row[0]


@pytest.mark.parametrize(
    ("model", "error"),
    [
        ("nobody/knows", "ConfigurationError"),
        ("Qwen/nothing", "KeyError"),
        ("local-folder", "ValueError"),
    ],
)
def test_unknown_models_raise_what_the_page_says(model: str, error: str) -> None:
    from tinker_cookbook import model_info

    with pytest.raises(Exception) as caught:
        model_info.get_recommended_renderer_name(model)
    names = {cls.__name__ for cls in type(caught.value).__mro__}
    assert error in names and error in read_page(PAGES / "models.md")


# -- hyperparams.md -------------------------------------------------------------------------------


def test_rates_and_sizes_in_the_text_are_the_cookbook_s() -> None:
    from tinker_cookbook.hyperparam_utils import get_lora_param_count, get_lr

    text = read_page(PAGES / "hyperparams.md")
    rates = re.findall(r"(\d\.\d\de-\d\d) for `([^`]+)`", text)
    sizes = re.findall(r"(\d+)M for `([^`]+)`", text)
    assert len(rates) == 3 and len(sizes) == 3
    for rate, model in rates:
        assert f"{get_lr(model):.2e}" == rate
    for size, model in sizes:
        assert round(get_lora_param_count(model, 32) / 1e6) == int(size)


def test_the_formula_is_as_written() -> None:
    from tinker_cookbook import hyperparam_utils
    from tinker_cookbook.hyperparam_utils import get_lr

    for model, exponent in (("Qwen/Qwen3-8B", 0.0775), ("meta-llama/Llama-3.1-8B", 0.781)):
        hidden = hyperparam_utils._get_hidden_size(model)
        assert get_lr(model) == pytest.approx(5e-5 * 10 * (2000 / hidden) ** exponent)


def test_families_without_a_formula_are_named() -> None:
    text = read_page(PAGES / "hyperparams.md")
    families = re.findall(r"^For ([^`]+) `get_lr` raises", text.replace("** For", "**\nFor"), re.M)
    named = re.split(r", | and ", families[0].strip())
    for row in table("models.md", "model"):
        model = spans(row[0])[0]
        has_formula = any(family in model for family in ("Qwen", "Llama"))
        assert has_formula == (row[3] != "none"), model
        assert has_formula or any(name.lower() in model.lower() for name in named), model


def test_method_rates_are_those_of_the_recipes() -> None:
    from tinkerlab.planning.hyperparams import RECIPE_DEFAULTS

    told = {row[0].lower(): row[1] for row in table("hyperparams.md", "method")}
    for method, name in (("rl", "rl"), ("dpo", "dpo"), ("distillation", "distill")):
        assert float(told[method].split(";")[0]) == RECIPE_DEFAULTS[name][0]  # type: ignore[index]


@pytest.mark.parametrize("row", table("hyperparams.md", "recipe"), ids=lambda row: row[0])
def test_recipes_start_from_these_numbers(row: list[str]) -> None:
    import chz

    module = importlib.import_module(f"tinker_cookbook.{spans(row[0])[0]}")
    fields = chz.chz_fields(module.CLIConfig)
    default = {name: getattr(field, "_default", None) for name, field in fields.items()}
    assert default["model_name"] == spans(row[1])[0]
    assert default["learning_rate"] == float(row[2])
    assert row[3] == (str(default["lora_rank"]) if "lora_rank" in default else "")
    batch = default.get("groups_per_batch") or default["batch_size"]
    group = default.get("group_size")
    assert row[4] == (f"{batch} x {group}" if group else str(batch))


# -- data.md -------------------------------------------------------------------------------------


def test_findings_are_all_that_the_check_makes() -> None:
    from tinkerlab.data import check, preference_check

    folder = Path(inspect.getfile(check)).parent
    source = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    made = set(re.findall(r'Finding\(\s*"(\w+)"', source))
    made |= set(check._REFUSED) | set(preference_check._REFUSED)
    assert {name for row in table("data.md", "kind") for name in spans(row[0])} == made


def test_train_on_what_has_these_values() -> None:
    from tinker_cookbook.renderers import TrainOnWhat

    named = [spans(row[0])[0] for row in table("data.md", "value")]
    assert sorted(named) == sorted(member.value for member in TrainOnWhat)


CHAT = [("system", "S"), ("user", "U1"), ("assistant", "A1"), ("user", "U2"),
        ("assistant", "CALL"), ("tool", "RESULT"), ("assistant", "A2")]  # fmt: skip
TRAINED = {
    "all_assistant_messages": "A1 CALL A2",
    "last_assistant_message": "A2",
    "last_assistant_turn": "CALL A2",
    "all_messages": "S U1 A1 U2 CALL RESULT A2",
    "all_tokens": "S U1 A1 U2 CALL RESULT A2",
    "all_user_and_system_messages": "S U1 U2",
    "customized": "A1",
}


@pytest.mark.parametrize("value", TRAINED)
def test_train_on_what_trains_what_the_page_says(value: str) -> None:
    from tinker_cookbook.renderers import TrainOnWhat, get_renderer
    from tinker_cookbook.tokenizer_utils import get_tokenizer

    from tinkerlab.rehearsal.models.registry import resolve

    tokenizer = get_tokenizer(str(resolve("tiny:llama").directory))

    messages: list[Any] = [{"role": role, "content": text} for role, text in CHAT]
    if value == "customized":
        messages = [{**message, "trainable": message["content"] == "A1"} for message in messages]
    renderer = get_renderer("qwen3_instruct", tokenizer)
    tokens, weights = renderer.build_supervised_example(messages, TrainOnWhat(value))
    ids = tokens.to_ints()
    kept = str(tokenizer.decode([token for token, w in zip(ids, weights, strict=True) if w > 0]))
    words = [text for _, text in CHAT]
    found = [word for word in re.findall(r"[A-Z]+\d?", kept) if word in words]
    assert found == TRAINED[value].split()
    assert ("<|im_start|>assistant" in kept) == (value == "all_tokens")


def test_limits_are_the_trainers() -> None:
    from tinkerlab.data.splits import MAX_TRAIN_ROWS, MAX_VAL_ROWS, VAL_FRACTION

    text = read_page(PAGES / "data.md")
    assert f"At most {MAX_TRAIN_ROWS:,} rows" in text and f"and {MAX_VAL_ROWS:,} scored" in text
    assert VAL_FRACTION == 0.1 and "A tenth is held back" in text


def test_rows_are_those_that_are_read() -> None:
    from tinkerlab.data.formats import FORMATS
    from tinkerlab.data.preferences import _KEYS
    from tinkerlab.tasks.rows import ANSWER_KEYS, PROMPT_KEYS, WORKED_KEYS

    rows = {row[0]: row[1] for row in table("data.md", "for", "row")}
    keys = {
        frozenset(re.findall(r'"(\w+)":? ?', re.sub(r'\[\{"role.*?\]', "", span)))
        for name, cell in rows.items()
        if name.startswith(("SFT", "preferences"))
        for span in spans(cell)
        if span.startswith("{")
    }
    wanted = {frozenset((*f.required, *f.optional)) - {"tools"} for f in FORMATS}
    assert keys == wanted | {frozenset(each) for each in _KEYS.values()}
    task = spans(rows["RL, evaluation, distillation"])
    assert set(task) - {"tests"} == {*PROMPT_KEYS, *ANSWER_KEYS, *WORKED_KEYS}


def test_near_means_what_the_page_says() -> None:
    from tinkerlab.data.duplicates import NEAR, SHINGLE_WORDS

    assert f"({SHINGLE_WORDS}-word shingles, similarity {NEAR})" in read_page(PAGES / "data.md")


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
