"""Configs from YAML and overrides: what is read, and what each mistake says."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tinkerlab.errors import InputError
from tinkerlab.training import config as configs
from tinkerlab.training.supervised_config import SupervisedConfig

TEMPLATE = Path(__file__).resolve().parents[2] / "templates" / "training-config.yaml"
REQUIRED = ["base_model=m", "train_file=t.jsonl"]


def load(*overrides: str, file: Path | None = None) -> SupervisedConfig:
    return configs.load(SupervisedConfig, file, [*REQUIRED, *overrides])


def test_overrides_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("lora_rank: 4\nlearning_rate: 1e-4\nnum_steps: 7\n", encoding="utf-8")
    config = load("lora_rank=16", "num_steps=None", file=file)
    assert config.lora_rank == 16
    assert config.learning_rate == 1e-4  # YAML reads 1e-4 as text
    assert config.num_steps is None
    assert config.folder == Path("runs/sft")


def test_the_template_holds_every_key_with_its_default() -> None:
    template = yaml.safe_load(TEMPLATE.read_text(encoding="utf-8"))
    defaults = configs.to_dict(load())
    assert list(template) == list(dict.fromkeys(template))
    assert set(template) == set(defaults)
    config = configs.load(SupervisedConfig, TEMPLATE, [])
    differing = {key for key, value in configs.to_dict(config).items() if value != defaults[key]}
    assert differing == {"base_model", "train_file"}  # the two that have no default


def test_every_template_line_is_explained() -> None:
    """Either the key has a comment, or it stands in a group that has one."""
    for group in TEMPLATE.read_text(encoding="utf-8").split("\n\n"):
        assert "#" in group


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("lora_rnk=8", "unknown key 'lora_rnk'; did you mean lora_rank?"),
        ("batch_size=8", "did you mean train_batch_size?"),
        ("qqqq=8", "unknown key 'qqqq'; known: base_model, "),
        ("lora_rank", "write it as key=value"),
        ("=3", "write it as key=value"),
        ("lora_rank=1.5", "lora_rank must be a whole number, got '1.5' (text)"),
        ("lora_rank=0", "lora_rank must be at least 1, got 0"),
        ("learning_rate=fast", "learning_rate must be a number or 'auto', got 'fast'"),
        ("learning_rate=-1", "learning_rate must be 'auto' or a number above 0, got -1"),
        ("learning_rate=nan", "learning_rate must be 'auto' or a number above 0, got nan"),
        ("lr_schedule=step", "lr_schedule must be 'linear' or 'cosine' or 'constant'"),
        ("train_on_what=everything", "train_on_what must be 'last_assistant_message' or"),
        ("train_mlp=yes", "train_mlp must be true or false, got 'yes'"),
        ("ttl_seconds=60", "ttl_seconds must be at least 3600"),
        ("val_fraction=1", "val_fraction must be in [0, 1)"),
        ("run_name=../x", "run_name '../x': letters, digits"),
        ("grad_clip_norm=-1", "grad_clip_norm must be a finite number of at least 0"),
        ("adam_beta2=1", "adam_beta2 must be in [0, 1)"),
        ("max_seq_len=1", "max_seq_len must be at least 2"),
        ("submit_ahead=-1", "submit_ahead must not be negative"),
        ("base_model=null", "base_model"),
    ],
)
def test_a_wrong_override_says_how_to_mend_it(override: str, message: str) -> None:
    if override == "base_model=null":
        assert load(override).base_model == "null"  # a name like any other
        return
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        load(override)
    assert "\n" not in str(caught.value)


def test_settings_that_exclude_each_other() -> None:
    with pytest.raises(InputError, match="set one of them"):
        load("num_steps=3", "num_epochs=2")
    with pytest.raises(InputError, match="at least one must be true"):
        load("train_mlp=false", "train_attn=false", "train_unembed=false")


def test_what_has_no_default_is_asked_for() -> None:
    with pytest.raises(InputError, match="missing: base_model, train_file"):
        configs.load(SupervisedConfig, None, [])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"- a\n- b\n", "must be 'key: value' lines, not a list"),
        (b"a: [1\n", "not YAML"),
        (b"a: \xff\n", "not UTF-8"),
        (b"lora_rank: [8]\n", "lora_rank must be a whole number, got [8] (list)"),
        (b"lora_rank: true\n", "lora_rank must be a whole number, got True (true/false)"),
        (b"base_model:\n", "base_model must be text, got None (nothing)"),
        (b"1: 2\n", "unknown key '1'"),
        (b"!!python/object/apply:os.system ['true']\n", "not YAML"),
    ],
)
def test_a_wrong_file_says_what_and_where(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_bytes(content)
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        load(file=file)
    assert "c.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_file_changes_nothing_and_a_missing_one_is_named(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("# nothing\n", encoding="utf-8")
    assert load(file=file) == load()
    with pytest.raises(InputError, match=r"none\.yaml: No such file"):
        load(file=tmp_path / "none.yaml")


def test_the_printed_config_reads_back_to_itself(tmp_path: Path) -> None:
    config = load("learning_rate=3e-5", "run_name=42", "ttl_seconds=null", "wandb_project=p")
    file = tmp_path / "c.yaml"
    file.write_text(configs.to_yaml(config), encoding="utf-8")
    assert configs.load(SupervisedConfig, file, []) == config


@given(st.text(max_size=40))
def test_no_override_makes_it_crash(text: str) -> None:
    try:
        load(text)
    except InputError as error:
        assert "\n" not in str(error) or "\n" in text


@given(
    st.dictionaries(
        st.sampled_from(sorted(configs.to_dict(load()))),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(),
            st.text(max_size=10),
            st.lists(st.integers(), max_size=2),
        ),
    )
)
def test_no_file_value_makes_it_crash(tmp_path_factory, values: dict) -> None:
    file = tmp_path_factory.mktemp("c") / "c.yaml"
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    with contextlib.suppress(InputError):
        configs.load(SupervisedConfig, file, [])
