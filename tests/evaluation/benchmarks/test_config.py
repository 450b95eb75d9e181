"""Settings: the cookbook's names, one benchmark's own, and what its runner is given."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from repository import ROOT

from tinkerlab.errors import InputError
from tinkerlab.evaluation.benchmarks import catalogue, pricing, settings
from tinkerlab.evaluation.benchmarks.config import ELSEWHERE, PER_BENCHMARK, BenchmarksConfig
from tinkerlab.training import config as configs

TEMPLATE = ROOT / "templates" / "benchmarks-config.yaml"


def read(*words: str) -> BenchmarksConfig:
    return configs.load(BenchmarksConfig, None, ["base_model=x/y", *words], ELSEWHERE)


@pytest.mark.parametrize("key", ELSEWHERE)
def test_settings_of_the_cookbook_are_refused_by_name(key: str) -> None:
    with pytest.raises(InputError, match=f"unknown key '{key}'; "):
        read(f"{key}=1", "benchmarks=gsm8k")


def test_the_config_covers_the_cookbook_s() -> None:
    """A setting that a newer BenchmarkConfig has must be taken or refused on purpose."""
    from tinker_cookbook.eval.benchmarks import BenchmarkConfig

    theirs = {field.name for field in dataclasses.fields(BenchmarkConfig)}
    assert theirs - set(configs.field_types(BenchmarksConfig)) <= set(ELSEWHERE)
    assert set(PER_BENCHMARK) <= theirs


def test_the_template_has_every_key_with_its_default() -> None:
    template = yaml.safe_load(TEMPLATE.read_text())
    assert set(template) == set(configs.field_types(BenchmarksConfig))
    config = read("benchmarks=gsm8k")
    for key, value in template.items():
        if key not in ("benchmarks", "base_model"):
            assert getattr(config, key) == value, key


def test_one_benchmark_s_own_settings() -> None:
    words = "per_benchmark={ifeval: {temperature: 0, max_tokens: 99, system_prompt: null}}"
    config = read("benchmarks=[gsm8k,ifeval]", "max_tokens=5", "system_prompt=Be brief.", words)
    own, other = config.of("ifeval"), config.of("gsm8k")
    assert (own.temperature, own.max_tokens, own.system_prompt) == (0.0, 99, None)
    assert (other.temperature, other.max_tokens, other.system_prompt) == (0.6, 5, "Be brief.")
    again = yaml.safe_load(configs.to_yaml(config))
    assert again["per_benchmark"] == {
        "ifeval": {"temperature": 0, "max_tokens": 99, "system_prompt": None}
    }


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["benchmarks=[]"], "name at least one"),
        (["benchmarks=[gsm8k,gsm8k]"], "named twice"),
        (["max_examples=0"], "max_examples must be at least 1"),
        (["concurrency=0"], "concurrency must be at least 1"),
        (["temperature=-1"], "temperature must be finite and not negative"),
        (["temperature=nan"], "temperature must be finite and not negative"),
        (["seed=-1"], "seed must be finite and not negative"),
        (["timeout_seconds=0"], "timeout_seconds must be finite and over 0"),
        (["timeout_seconds=inf"], "timeout_seconds must be finite and over 0"),
        (["base_model=null"], "say what is measured"),
        (["per_benchmark={aime: {max_tokens: 1}}"], "aime is not among benchmarks"),
        (["per_benchmark={gsm8k: {max_token: 1}}"], "per_benchmark.gsm8k.*did you mean max_tokens"),
        (["per_benchmark={gsm8k: {num_samples: 4}}"], "eval_offline.py --samples"),
        (["per_benchmark={gsm8k: {seed: 4}}"], "seed is the same for all"),
        (["per_benchmark={gsm8k: {max_tokens: many}}"], "max_tokens must be a whole number"),
        (["per_benchmark={gsm8k: {max_tokens: 0}}"], "max_tokens must be at least 1"),
        (["per_benchmark=gsm8k"], "per_benchmark must be a mapping"),
    ],
)
def test_values_that_can_t_be(words: list[str], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        read("benchmarks=gsm8k", *words)


def for_cookbook(model: str, name: str, **more: Any) -> Any:
    config = BenchmarksConfig(benchmarks=[name], base_model=model, **more)
    return settings.for_cookbook(config.of(name), model, catalogue.registry()[name])


def test_what_the_cookbook_has_for_a_model_fills_the_gaps() -> None:
    """``BenchmarkConfig.for_model`` knows a fixed table of models and refuses all others."""
    known = for_cookbook("Qwen/Qwen3-8B", "gsm8k")
    assert (known.max_tokens, known.context_window, known.timeout_seconds) == (32768, 32768, 1800)
    own = for_cookbook(
        "Qwen/Qwen3-8B", "gsm8k", max_tokens=64, context_window=512, timeout_seconds=9.0
    )
    assert (own.max_tokens, own.context_window, own.timeout_seconds) == (64, 512, 9)
    other = for_cookbook("some/model", "gsm8k")
    assert (other.max_tokens, other.context_window, other.timeout_seconds) == (4096, None, 300)
    # One that takes longer says so, which the cookbook's runner does not heed.
    assert for_cookbook("some/model", "tau2_bench").timeout_seconds == 600


def test_the_plan_counts_items_and_prices_the_judge() -> None:
    config = BenchmarksConfig(
        benchmarks=["gsm8k", "bfcl", "arena_hard", "longbench"],
        base_model="Qwen/Qwen3-8B",
        checkpoint="tinker://r/sampler_weights/x",
        max_examples=50,
        max_tokens=1000,
        judge_model="Qwen/Qwen3-8B",
    )
    rows = {row["benchmark"]: row for row in pricing.plan(config, None)["benchmarks"]}
    assert [row["items"] for row in rows.values()] == [50] * 4
    # Two models x 50 items x (200 prompt tokens at 0.195 + 1,000 at 0.60 USD per million), by hand.
    assert f"at most ${100 * (200 * 0.195 + 1000 * 0.60) / 1e6:,.2f}" in rows["gsm8k"]["price"]
    assert (
        f"at most ${100 * (500 * 0.195 + 4096 * 0.60) / 1e6:,.2f}"
        in (rows["arena_hard"]["judge_price"])
    )
    assert "not estimated" in rows["longbench"]["price"]
    assert "judge_price" not in rows["gsm8k"]
    alone = BenchmarksConfig(benchmarks=["gsm8k"], checkpoint="tinker://r/sampler_weights/x")
    assert "set base_model" in pricing.plan(alone, None)["benchmarks"][0]["price"]


def test_a_summary_that_does_not_say_what_it_left_out_is_made_again(tmp_path: Path) -> None:
    config = read("benchmarks=gsm8k")
    wanted = settings.identity(config.of("gsm8k"), "gsm8k", {"base": "x/y"}, "auto")
    settings.claim(tmp_path, wanted)
    for summary, done in (("{}", False), ('{"left_out": {"items": 0}}', True)):
        (tmp_path / "scores.json").write_text(summary)
        assert (settings.earlier(tmp_path, wanted) is not None) == done
