"""The chosen renderer is the one whose tokens the model's own template gives, or it is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from published_tokenizers import published_tokenizer

from tinkerlab.data.reading import Row
from tinkerlab.data.renderers import (
    CANDIDATES,
    recommended_names,
    resolve_renderer,
    template_matches,
    try_renderer,
)
from tinkerlab.errors import InputError


def test_a_chatml_template_is_recognised_by_its_tokens(chatml: Any) -> None:
    resolved = resolve_renderer("nobody/unheard-of", chatml)
    assert resolved.name == "qwen3_instruct"
    assert "6 of 6 samples" in resolved.reason
    assert not resolved.warnings and not resolved.template_adds_system


def test_a_template_that_adds_a_system_message_is_told_apart(default_system: Any) -> None:
    resolved = resolve_renderer("nobody/unheard-of", default_system)
    assert resolved.name == "qwen3_instruct"
    assert resolved.template_adds_system
    assert "3 of 6 samples" in resolved.reason


def test_an_unknown_template_falls_back_with_a_warning(other_template: Any) -> None:
    resolved = resolve_renderer("nobody/unheard-of", other_template)
    assert resolved.name == "role_colon"
    assert "no cookbook renderer" in resolved.warnings[0]


def test_a_base_model_without_template_gets_the_plain_format(
    make_tokenizer_folder: Callable[[str], Path],
) -> None:
    from tinkerlab.data import load_tokenizer

    tokenizer = load_tokenizer(str(make_tokenizer_folder("")))
    tokenizer.chat_template = None
    resolved = resolve_renderer("nobody/base", tokenizer)
    assert resolved.name == "role_colon"
    assert "no chat template" in resolved.reason


def test_the_cookbooks_recommendation_comes_first(chatml: Any) -> None:
    resolved = resolve_renderer("Qwen/Qwen3-8B", chatml)
    assert resolved.name == recommended_names("Qwen/Qwen3-8B")[0] == "qwen3"
    assert "recommends" in resolved.reason


def test_a_recommendation_that_the_tokenizer_cannot_follow_is_not_forced(chatml: Any) -> None:
    resolved = resolve_renderer("meta-llama/Llama-3.1-8B-Instruct", chatml)
    # llama3's markers are no tokens of this tokenizer; its own template decides.
    assert resolved.name == "qwen3_instruct"
    assert "is it this model's tokenizer?" in resolved.warnings[0]


@pytest.mark.parametrize("model", ["Qwen/Qwen9-1B", "no-slash", "nobody/model", "Qwen/"])
def test_models_that_the_cookbook_does_not_know(model: str) -> None:
    assert recommended_names(model) == []


def test_a_named_renderer_is_taken_but_questioned(chatml: Any) -> None:
    resolved = resolve_renderer("Qwen/Qwen3-8B", chatml, "role_colon")
    assert resolved.name == "role_colon"
    assert "isn't one of those" in resolved.warnings[0]
    assert not resolve_renderer("Qwen/Qwen3-8B", chatml, "qwen3_disable_thinking").warnings


@pytest.mark.parametrize("wanted", ["qwen33", "llama3", ""])
def test_a_named_renderer_that_cannot_work_is_one_line(chatml: Any, wanted: str) -> None:
    with pytest.raises(InputError, match=f"renderer '{wanted}' can't be used") as caught:
        resolve_renderer("Qwen/Qwen3-8B", chatml, wanted)
    assert "\n" not in str(caught.value)
    assert "qwen3_disable_thinking" in str(caught.value)


def test_every_candidate_is_a_renderer_of_the_cookbook(chatml: Any) -> None:
    unknown = [n for n in CANDIDATES if "Unknown renderer" in try_renderer(n, chatml, "m")[1]]
    assert unknown == []


@pytest.mark.parametrize(
    ("package", "model", "expected"),
    [
        ("qwen3", "somebody/my-qwen3-finetune", "qwen3"),
        ("llama3_1", "somebody/my-llama", "llama3"),
    ],
)
def test_published_tokenizers_are_recognised_without_a_known_name(
    package: str, model: str, expected: str
) -> None:
    from tinkerlab.data import load_tokenizer

    tokenizer = load_tokenizer(str(published_tokenizer(package)))
    resolved = resolve_renderer(model, tokenizer)
    assert resolved.name == expected
    assert all(template_matches(resolved.renderer, tokenizer).values())


def test_the_embedded_model_gets_chatml() -> None:
    """SmolLM2's template adds a default system message; only its tokenizer is needed here."""
    from tinkerlab.data import load_tokenizer, model_limits
    from tinkerlab.rehearsal.models.registry import DEFAULT_MODEL

    resolved = resolve_renderer(DEFAULT_MODEL, load_tokenizer(DEFAULT_MODEL))
    assert resolved.name == "qwen3_instruct"
    assert resolved.template_adds_system
    assert model_limits(DEFAULT_MODEL).vocab_size == 49_152


@pytest.mark.parametrize("missing", ["/nowhere/at-all", "nobody/unheard-of"])
def test_no_such_tokenizer_is_one_line(missing: str) -> None:
    from tinkerlab.data import load_tokenizer

    with pytest.raises(InputError, match=missing) as caught:
        load_tokenizer(missing)
    assert "\n" not in str(caught.value)


def test_a_folder_without_tokenizer_and_one_with_a_broken_one(tmp_path: Path) -> None:
    from tinkerlab.data import load_tokenizer

    with pytest.raises(InputError, match="holds none of"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="can't be loaded"):
        load_tokenizer(str(tmp_path))


def test_rows_are_rows() -> None:
    assert Row(0, 7, [], (), "a.jsonl").place == "a.jsonl line 7"
    assert Row(0, 7, []).place == "line 7"
