"""The DPO config: the template, what is refused by name, and the cookbook's own settings."""

from __future__ import annotations

from pathlib import Path

import chz
import pytest
import yaml

from tinkerlab.errors import InputError
from tinkerlab.training import config as configs
from tinkerlab.training.dpo.config import ELSEWHERE, DPOConfig

TEMPLATE = Path(__file__).resolve().parents[2] / "templates" / "dpo-config.yaml"
REQUIRED = ["base_model=m", "train_file=pairs.jsonl"]
# Of tinker_cookbook.preference.train_dpo.Config: debugging aids of the cookbook's loop.
LEFT_OUT = {"enable_trace", "span_chart_every"}


def load(*overrides: str, required: list[str] = REQUIRED) -> DPOConfig:
    return configs.load(DPOConfig, None, [*required, *overrides], ELSEWHERE)


def test_the_template_holds_every_key_with_its_default() -> None:
    template = yaml.safe_load(TEMPLATE.read_text(encoding="utf-8"))
    defaults = configs.to_dict(load())
    assert set(template) == set(defaults)
    config = configs.load(DPOConfig, TEMPLATE, [])
    differing = {key for key, value in configs.to_dict(config).items() if value != defaults[key]}
    assert differing == {"base_model"}


def test_every_template_group_is_explained() -> None:
    for group in TEMPLATE.read_text(encoding="utf-8").split("\n\n"):
        assert "#" in group


def test_every_setting_of_the_cookbooks_loop_has_its_place() -> None:
    from tinker_cookbook.preference.train_dpo import Config

    ours = {*configs.to_dict(load()), *ELSEWHERE, *LEFT_OUT}
    assert [name for name in chz.chz_fields(Config) if name not in ours] == []


def test_shared_names_have_the_cookbooks_defaults() -> None:
    import inspect

    from tinker_cookbook.preference.train_dpo import Config

    theirs = inspect.signature(Config).parameters
    for name in ("dpo_beta", "learning_rate", "lr_schedule", "lora_rank", "eval_every"):
        assert getattr(load(), name) == theirs[name].default, name


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("beta=0.1", "unknown key 'beta'; did you mean dpo_beta?"),
        ("reference_model_name=m", "the reference is where training starts"),
        ("model_name=m", "here it is base_model"),
        ("dpo_beta=0", "dpo_beta must be above 0"),
        ("dpo_beta=-1", "dpo_beta must be a finite number of at least 0, got -1.0"),
        ("dpo_beta=nan", "dpo_beta must be a finite number"),
        ("learning_rate=auto", "learning_rate must be a number, got 'auto'"),
        ("learning_rate=0", "learning_rate must be 'auto' or a number above 0"),
        ("train_batch_size=0", "train_batch_size must be at least 1"),
        ("comparison_builder=a:B", "set one of them"),
        ("comparison_builder_args={a: b}", "comparison_builder_args without comparison_builder"),
        ("val_fraction=1.0", "val_fraction must be in [0, 1)"),
        ("load_checkpoint_path=tinker://r/sampler_weights/x", "give the weights path"),
        ("run_name=a/b", "run_name 'a/b'"),
        ("ttl_seconds=5", "ttl_seconds must be at least 3600"),
    ],
)
def test_a_wrong_setting_is_one_line(override: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load(override)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_pairs_need_a_source() -> None:
    with pytest.raises(InputError, match="train_file and comparison_builder: set one of them"):
        load(required=["base_model=m"])
    with pytest.raises(InputError, match="write module:Class"):
        load("comparison_builder=HHH", required=["base_model=m"])
