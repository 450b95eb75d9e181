"""Cost before a run: token counts and prices worked out by hand, and tables that are wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import estimate_cost
from tinkerlab.errors import InputError
from tinkerlab.planning import cost, prices

TABLE = prices.PriceTable(
    source="here",
    cached_prefill_discount=0.8,
    storage_gb_month=0.1,
    models={
        "student": prices.Price(prefill=1.0, sample=3.0, train=2.0, read="today"),
        "teacher": prices.Price(prefill=10.0, sample=30.0, train=20.0, read="today"),
    },
)


def test_supervised_cost() -> None:
    usage = cost.supervised_usage(1_000_000, 2.5, 10, held_out_tokens=100_000, evals=5)
    found = cost.estimate("student", usage, TABLE, lora_parameters=250_000_000)
    assert usage.train == 3_000_000
    assert found.total_usd == pytest.approx(6.0)
    assert found.checkpoint_bytes == 4_000_000_000  # weights twice and two moments, 4 bytes each
    assert found.storage_usd_month == pytest.approx(0.4)


def test_preference_cost_counts_the_reference_model() -> None:
    found = cost.estimate("student", cost.preference_usage(1_000_000, 1, 10), TABLE)
    assert found.total_usd == pytest.approx(2.0 + 1.0)


def test_rl_cost() -> None:
    usage = cost.rl_usage(
        steps=10, groups=4, group_size=5, prompt_tokens=1_000, completion_tokens=2_000
    )
    # 200 rollouts; of 5 rollouts of a prompt one reads it and four find it cached.
    assert (usage.train, usage.prefill, usage.cached, usage.sample) == (
        600_000,
        40_000,
        160_000,
        400_000,
    )
    found = cost.estimate("student", usage, TABLE)
    assert found.total_usd == pytest.approx(0.6 * 2 + (0.04 + 0.16 * 0.2) * 1 + 0.4 * 3)


def test_distillation_pays_the_teacher() -> None:
    usage = cost.rl_usage(
        steps=1,
        groups=1,
        group_size=1,
        prompt_tokens=500_000,
        completion_tokens=500_000,
        teacher=True,
    )
    found = cost.estimate("student", usage, TABLE, scorer="teacher")
    assert found.scored_usd == pytest.approx(10.0)


def test_the_table_of_the_repository_is_whole_and_dated() -> None:
    table = prices.read_prices()
    assert len(table.models) > 20
    assert all(price.read.count("2026") for price in table.models.values())
    assert all(0 < p.prefill <= p.train and p.sample > 0 for p in table.models.values())


def test_its_models_are_known_to_the_cookbook() -> None:
    from tinker_cookbook.model_info import get_model_attributes

    for model in prices.read_prices().models:
        get_model_attributes(model)  # raises for a name that does not exist


def test_a_model_without_a_price_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r"did you mean Qwen/Qwen3-8B\?.*--prices"):
        estimate_cost.main(["Qwen/Qwen3-9B", "--tokens", "1", "--rows", "1"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models: {}", "no models"),
        ("cached_prefill_discount: 0.8\nmodels: {a: {prefill: 1}}", "storage_gb_month"),
        (
            "cached_prefill_discount: 0\nstorage_gb_month: 0\nmodels: {a: {prefill: -1}}",
            "a: prefill must be a number",
        ),
        ("cached_prefill_discount: 0\nstorage_gb_month: 0\nmodels: {a: 3}", "a: write"),
        ("[", "not YAML"),
    ],
)
def test_a_wrong_table_is_one_line(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=words):
        prices.read_prices(file)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--method", "rl"], "--steps above 0"),
        ([], "--tokens above 0; or give --data"),
        (["--tokens", "5", "--rows", "0"], "--rows above 0"),
        (["--method", "dpo", "--data", "x"], "--tokens and --rows"),
        (["--tokens", "5", "--rows", "5", "--like", "nowhere"], "time/total"),
        (["--tokens", "5", "--rows", "5", "--rank", "0"], "--rank"),
        (["--teacher", "nobody"], "no price for nobody"),
    ],
)
def test_what_is_missing_is_named(arguments: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        estimate_cost.main(["Qwen/Qwen3-8B", *arguments])


def test_the_script_counts_rows_and_takes_the_pace_of_a_run(tmp_path: Path, capsys) -> None:
    row = {
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}]
    }
    data = tmp_path / "chats.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for _ in range(20)))
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").write_text(
        '{"step": 0, "time/total": 30}\n{"step": 1, "time/total": 6}\n'
    )
    command = ["Qwen/Qwen3-8B", "--data", str(data), "--batch", "4", "--epochs", "2"]
    command += ["--tokenizer", "tiny:llama", "--like", str(run)]
    assert estimate_cost.main([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["usage"]["steps"] == 10
    assert document["usage"]["train"] > 20 * 2 * len("HiYes.")  # byte tokens, and the markers
    assert document["wall_seconds"] == pytest.approx(180)
    assert estimate_cost.main(command) == 0
    out = capsys.readouterr().out
    assert out.startswith("about $") and "2026-10-07" in out and "3 minutes" in out
