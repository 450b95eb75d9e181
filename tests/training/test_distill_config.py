"""The distillation config: the template, what is refused by name, the cookbook's settings."""

from __future__ import annotations

from pathlib import Path

import chz
import pytest
import yaml

from tinkerlab.errors import InputError
from tinkerlab.training import config as configs
from tinkerlab.training.distill.config import ELSEWHERE, DistillConfig

TEMPLATE = Path(__file__).resolve().parents[2] / "templates" / "distill-config.yaml"
REQUIRED = ["base_model=m", "dataset=p.jsonl", "teacher=t"]
# Debugging aids of the cookbook's loop.
LEFT_OUT = {"enable_trace", "span_chart_every"}


def load(*overrides: str, required: list[str] = REQUIRED) -> DistillConfig:
    return configs.load(DistillConfig, None, [*required, *overrides], ELSEWHERE)


def test_the_template_holds_every_key_with_its_default() -> None:
    template = yaml.safe_load(TEMPLATE.read_text(encoding="utf-8"))
    defaults = configs.to_dict(load())
    assert set(template) == set(defaults)
    config = configs.load(DistillConfig, TEMPLATE, [])
    differing = {key for key, value in configs.to_dict(config).items() if value != defaults[key]}
    assert differing == {"base_model", "dataset", "teacher", "learning_rate"}


def test_every_template_group_is_explained() -> None:
    for group in TEMPLATE.read_text(encoding="utf-8").split("\n\n"):
        assert "#" in group


def test_every_setting_of_the_cookbooks_loops_has_its_place() -> None:
    from tinker_cookbook.distillation import train_off_policy, train_on_policy

    ours = {*configs.to_dict(load()), *ELSEWHERE, *LEFT_OUT}
    for module in (train_on_policy, train_off_policy):
        assert [name for name in chz.chz_fields(module.Config) if name not in ours] == []


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("kl_penalty_coeff=1", "did you mean kl_penalty_coef?"),
        ("dataset_configs=x", "here it is dataset and teacher, or teachers"),
        ("n_teacher_targets=20", "this trainer has no soft targets"),
        ("method=offpolicy", "method must be 'on_policy' or 'off_policy', got 'offpolicy'"),
        ("loss_fn=cross_entropy", "loss_fn must be 'importance_sampling' or 'ppo' or 'cispo'"),
        ("loss_fn_config={beta: 1}", "importance_sampling has no setting 'beta'; it has none"),
        ("kl_penalty_coef=0", "the only thing to learn from"),
        ("temperature=0", "temperature must be above 0"),
        ("group_size=0", "group_size must be at least 1"),
        ("teachers={a: b}", "leave the others out"),
        ("load_checkpoint_path=tinker://r/sampler_weights/x", "give the weights path"),
    ],
)
def test_a_wrong_setting_is_one_line(override: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load(override)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_prompts_and_teacher_are_required() -> None:
    with pytest.raises(InputError, match="missing: dataset and teacher, or teachers"):
        load(required=["base_model=m", "teacher=t"])
    several = load("teachers={a.jsonl: t, b.jsonl: u}", required=["base_model=m"])
    assert several.pairs == {"a.jsonl": "t", "b.jsonl": "u"}
