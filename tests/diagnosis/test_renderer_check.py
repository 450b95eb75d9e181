"""renderer_check's answers on real tokenizers, its intended differences, and its refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import renderer_folders as folders
from published_tokenizers import published_tokenizer
from renderer_folders import TINY

import renderer_check
from tinkerlab.diagnosis.rendering import families
from tinkerlab.diagnosis.rendering.families import INTENDED, Comparison, family, intended
from tinkerlab.errors import InputError

SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    def run(*arguments: str | Path) -> dict[str, Any]:
        capsys.readouterr()
        code = renderer_check.main([*map(str, arguments), "--json"])
        document = json.loads(capsys.readouterr().out)
        assert code == (0 if document["ok"] else 1)
        return document

    return run


def causes(document: dict[str, Any]) -> list[str]:
    return [finding["cause"] for finding in document["findings"]]


def conversations(path: Path, *rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    return path


ASK = {"role": "user", "content": "What is 15 + 27?"}


@pytest.mark.parametrize(
    ("package", "model", "renderer"),
    [
        ("qwen3", "Qwen/Qwen3-8B", "qwen3"),
        ("qwen3", "Qwen/Qwen3-8B", "qwen3_disable_thinking"),
        ("llama3_1", "meta-llama/Llama-3.1-8B-Instruct", "llama3"),
        ("qwen3", "Qwen/Qwen3-8B-Base", "role_colon"),
    ],
)
def test_recommended_renderers_of_published_tokenizers(
    check, package: str, model: str, renderer: str
) -> None:
    document = check(model, "--tokenizer", published_tokenizer(package), "--renderer", renderer)
    assert causes(document) == []
    assert document["checked"]["samples"] >= 11


def test_llama3_markers_are_not_qwens(check) -> None:
    """The real tokenizers: markers fall apart, and the right renderer is named."""
    document = check(
        "Qwen/Qwen3-8B", "--tokenizer", published_tokenizer("qwen3"), "--renderer", "llama3"
    )
    assert causes(document) == ["wrong-renderer"]
    assert "qwen3" in document["findings"][0]["fix"]


def test_every_intended_difference_is_met(check) -> None:
    """An entry that no tokenizer shows would excuse what nobody has seen."""
    met = {
        *check(SMOLLM2)["intended"],
        *check("meta-llama/Llama-3.1-8B-Instruct", "--tokenizer", published_tokenizer("llama3_1"))[
            "intended"
        ],
    }
    assert met == {entry.key for entry in INTENDED}


@pytest.mark.parametrize(
    ("renderer", "sample", "ours", "theirs"),
    [
        ("qwen3", "plain", "<s>user hi", "<s>system x<e><s>user hello"),
        ("qwen3", "plain", "<s>user hi", "<s>user hi\n\n"),
        ("qwen3", "trailing whitespace in the answer", "a \n<e>", "a<e>"),
        ("llama3", "plain", "a \n<e>", "a<e>"),
        ("llama3", "trailing whitespace in the answer", "a \n<e>", "b<e>"),
    ],
)
def test_a_difference_beside_the_intended_one_is_not_excused(
    renderer: str, sample: str, ours: str, theirs: str
) -> None:
    assert intended(Comparison(renderer, sample, ours, theirs, has_system=False)) == []


def test_a_system_message_is_never_a_default_where_one_is_given() -> None:
    it = Comparison("qwen3", "system", "<s>user", "<s>system x<e><s>user", has_system=True)
    assert intended(it) == []


def test_families_by_their_longest_name() -> None:
    names = ("qwen3_5_preserve_thinking", "qwen3_disable_thinking", "kimi_k26", "mine/own")
    assert [family(name) for name in names] == ["qwen3_5", "qwen3", "kimi_k26", "mine/own"]
    assert families.template_arguments("qwen3_disable_thinking") == {"enable_thinking": False}
    assert families.template_arguments("deepseekv3_thinking") == {"thinking": True}
    assert families.template_arguments("qwen3_instruct") == {}


def test_the_mask_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert renderer_check.main([TINY]) == 0
    out = capsys.readouterr().out
    assert out.startswith("OK: renderer qwen3_instruct")
    assert "[[Twice 42 is 84.<|im_end|>]]" in out


def test_rows_are_counted_and_the_rest_is_said(check, tmp_path: Path) -> None:
    answer = {"role": "assistant", "content": "42."}
    data = conversations(tmp_path / "d.jsonl", *[[ASK, answer]] * 3)
    document = check(TINY, "--data", data, "--max-rows", "2")
    assert document["checked"]["rows"] == 2
    assert any("1 rows beyond" in note for note in document["notes"])


def test_the_template_of_another_model_under_the_right_renderer(check, tmp_path: Path) -> None:
    """qwen3_5 is right for the model; the tokenizer is an older one's. Its history differs, too."""
    answer = {"role": "assistant", "content": "42."}
    data = conversations(tmp_path / "d.jsonl", [ASK, answer, ASK, answer])
    document = check("Qwen/Qwen3.5-9B", "--tokenizer", published_tokenizer("qwen3"), "--data", data)
    assert causes(document) == ["template-mismatch", "earlier-turn-unseen"]
    assert [it["severity"] for it in document["findings"]] == ["problem", "warning"]


def test_bad_lines_are_named(check, tmp_path: Path) -> None:
    data = tmp_path / "d.jsonl"
    good = {"messages": [ASK, {"role": "assistant", "content": "42."}]}
    data.write_text(json.dumps(good) + '\n{"messages": [{"role": "robot", "content": "x"}]}\n')
    document = check(TINY, "--data", data)
    assert causes(document) == ["bad-rows"]
    assert "line 2" in document["findings"][0]["evidence"][0]


def test_reasoning_that_a_renderer_leaves_out(check, tmp_path: Path) -> None:
    """The thinking renderer writes it; one of the user's own, which takes it out, does not."""
    row = [ASK, {"role": "assistant", "content": "42.", "reasoning_content": "15 and 27"}]
    data = conversations(tmp_path / "d.jsonl", row)
    assert "reasoning-dropped" not in causes(check(TINY, "--renderer", "qwen3", "--data", data))
    with folders.broken_renderer("drops") as name:
        assert "reasoning-dropped" in causes(check(TINY, "--renderer", name, "--data", data))


def test_the_projects_case_of_reasoning_in_plain_data(check, tmp_path: Path) -> None:
    row = [ASK, {"role": "assistant", "content": "<think>\n15 and 27\n</think>\n\n42."}]
    data = conversations(tmp_path / "d.jsonl", row)
    found = check("Qwen/Qwen3-8B", "--tokenizer", published_tokenizer("qwen3"), "--data", data)
    assert causes(found) == ["think-tags-in-text"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("missing.jsonl", None),
        ("empty.jsonl", b""),
        ("binary.jsonl", b"\x00\xff\x00\xff"),
        ("half.jsonl", b'{"messages": [{"role": "us'),
    ],
)
def test_data_files_that_are_none(check, tmp_path: Path, name: str, content: bytes | None) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    try:
        document = check(TINY, "--data", path)
    except InputError as error:
        assert path.name in str(error)
    else:
        assert causes(document) == ["bad-rows"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["nobody/unheard-of"],
        ["tiny:nothing"],
        [TINY, "--renderer", "qwen33"],
        [TINY, "--tokenizer", "/nowhere"],
        [TINY, "--max-rows", "0"],
        [TINY, "--data", "/tmp"],
    ],
)
def test_refusals_are_one_line(arguments: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        renderer_check.main(arguments)
    assert "\n" not in str(caught.value)
