"""The RL config: the template, what is refused by name, and the cookbook's own settings."""

from __future__ import annotations

import re
import typing
from pathlib import Path

import chz
import pytest
import yaml

from tinkerlab.errors import InputError
from tinkerlab.training import config as configs
from tinkerlab.training.rl.config import ELSEWHERE, NO_POLICY_LOSSES, POLICY_LOSSES, RLConfig

TEMPLATE = Path(__file__).resolve().parents[2] / "templates" / "rl-config.yaml"
REQUIRED = ["base_model=m", "dataset=t.jsonl", "reward=exact"]

# Of tinker_cookbook.rl.train.Config: what our scripts settle for every run.
SETTLED = {
    "recipe_name": "run_name goes with the session",
    "session_name": "run_name",
    "base_url": "TINKER_BASE_URL",
    "evaluator_builders": "held-out tasks; scripts/eval_offline.py for more",
    "enable_trace": "a debugging aid of the cookbook's loop",
    "span_chart_every": "a debugging aid of the cookbook's loop",
    "rolling_ttl_seconds": "see rolling_save_every",
}


def load(*overrides: str, file: Path | None = None) -> RLConfig:
    return configs.load(RLConfig, file, [*REQUIRED, *overrides], ELSEWHERE)


def test_the_template_holds_every_key_with_its_default() -> None:
    template = yaml.safe_load(TEMPLATE.read_text(encoding="utf-8"))
    defaults = configs.to_dict(load())
    assert set(template) == set(defaults)
    config = configs.load(RLConfig, TEMPLATE, [])
    differing = {key for key, value in configs.to_dict(config).items() if value != defaults[key]}
    assert differing == {"base_model", "dataset", "reward"}  # the three that have no default


def test_every_template_line_is_explained() -> None:
    for group in TEMPLATE.read_text(encoding="utf-8").split("\n\n"):
        assert "#" in group


def test_the_losses_are_those_of_the_installed_sdk() -> None:
    from tinker.types import LossFnType

    assert {*POLICY_LOSSES, *NO_POLICY_LOSSES} == set(typing.get_args(LossFnType))


def test_every_setting_of_the_cookbooks_loop_has_its_place() -> None:
    from tinker_cookbook.rl.train import AsyncConfig, Config, KLReferenceConfig

    ours = {*configs.to_dict(load()), *ELSEWHERE, *SETTLED}
    missing = [name for name in chz.chz_fields(Config) if name not in ours]
    assert missing == []
    assert set(chz.chz_fields(AsyncConfig)) <= ours
    assert set(chz.chz_fields(KLReferenceConfig)) == {"base_model", "load_checkpoint_path"}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("group_sise=4", "unknown key 'group_sise'; did you mean group_size?"),
        ("async_config=1", "unknown key 'async_config'; here it is max_steps_off_policy"),
        ("model_name=m", "unknown key 'model_name'; here it is base_model"),
        ("stream_minibatch_config=1", "this trainer has no streaming minibatches"),
        ("group_size=1", "group_size must be at least 2, got 1"),
        ("temperature=0", "temperature must be above 0, got 0.0"),
        ("temperature=nan", "temperature must be above 0, got nan"),
        ("failure_reward=inf", "failure_reward must be a finite number, got inf"),
        ("grader_timeout=0", "grader_timeout must be above 0 seconds, got 0.0"),
        ("num_substeps=9", "num_substeps=9 splits the groups of a batch"),
        ("loss_fn=pppo", "loss_fn 'pppo': did you mean ppo? there are importance_sampling, ppo"),
        ("loss_fn=grpo", "there are importance_sampling, ppo, cispo, dro, gspo"),
        ("loss_fn=cross_entropy", "loss_fn cross_entropy: not for this trainer: it imitates"),
        ("loss_fn=stable_reinforce", "it needs stability records"),
        ("loss_fn_config={beta: 0.1}", "importance_sampling has no setting 'beta'; it has none"),
        ("loss_fn_config=0.2", "loss_fn_config must be a mapping like {name: 0.5} or null"),
        ("loss_fn_config={beta", "loss_fn_config must be a mapping like"),
        ("stop=[1, [2]]", "stop must be a list like [text, ...] or null"),
        ("stop=['']", "stop: a stop sequence is empty"),
        ("kl_penalty_coef=-1", "kl_penalty_coef must be a finite number of at least 0"),
        ("kl_reference_path=runs/sft", "kl_reference_path runs/sft: must be 'base' or a tinker"),
        (
            "load_checkpoint_path=tinker://r/sampler_weights/1",
            "sampler weights cannot be trained; give the weights path",
        ),
        ("learning_rate=0", "learning_rate must be 'auto' or a number above 0"),
        ("ttl_seconds=60", "ttl_seconds must be at least 3600"),
    ],
)
def test_a_wrong_override_says_how_to_mend_it(override: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        load(override)
    assert "\n" not in str(caught.value)


def test_a_loss_takes_its_own_settings_only() -> None:
    config = load("loss_fn=ppo", "loss_fn_config={clip_low_threshold: 0.9}")
    assert config.loss_fn_config == {"clip_low_threshold": 0.9}
    with pytest.raises(InputError, match="ppo has no setting 'beta'; it has clip_low_threshold"):
        load("loss_fn=ppo", "loss_fn_config={beta: 0.9}")
    with pytest.raises(InputError, match="beta must be a finite number"):
        load("loss_fn=dro", "loss_fn_config={beta: .nan}")


def test_a_penalty_after_another_stage_must_say_to_what() -> None:
    start = "load_checkpoint_path=tinker://r/weights/final"
    with pytest.raises(InputError, match="say what to stay close to"):
        load(start, "kl_penalty_coef=0.1")
    load(start, "kl_penalty_coef=0.1", "kl_reference_path=base")


def test_lists_and_mappings_survive_printing(tmp_path: Path) -> None:
    config = load("stop=.", "loss_fn=dro", "loss_fn_config={beta: 0.1}", "system_prompt=a: b")
    assert config.stop == ["."]
    file = tmp_path / "c.yaml"
    file.write_text(configs.to_yaml(config), encoding="utf-8")
    assert configs.load(RLConfig, file, []) == config
    assert load('stop=["\\n", "##"]').stop == ["\n", "##"]
