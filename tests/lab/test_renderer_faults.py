"""Wrong renderers, doctored tokenizers, data that a renderer can't teach, and stale samplers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import renderer_folders as folders
from fault_lab import Lab, Look, fault, healthy
from published_tokenizers import published_tokenizer
from renderer_folders import TINY

SCRIPT = "renderer_check.py"
GAP = "compare_sampling_training_logprobs.py"

ASK = {"role": "user", "content": "What is 15 + 27?"}
AGAIN = {"role": "user", "content": "And twice that?"}


def thought(thinking: str, text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "reasoning_content": thinking}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def rows(lab: Lab, *conversations: list[dict[str, Any]]) -> str:
    text = "".join(json.dumps({"messages": it}) + "\n" for it in conversations)
    return str(lab.write("chats.jsonl", text))


@fault(SCRIPT, "wrong-renderer", produced="role_colon for a chat model")
def test_plain_format_for_a_chat_model(lab: Lab) -> Look:
    return Look([TINY, "--renderer", "role_colon"])


@fault(SCRIPT, "wrong-renderer", produced="a thinking renderer for a model that never reasons")
def test_thinking_renderer_for_an_instruct_model(lab: Lab) -> Look:
    return Look([TINY, "--renderer", "qwen3"])


@fault(SCRIPT, "wrong-renderer", produced="llama3 markers with a ChatML tokenizer")
def test_renderer_of_another_family(lab: Lab) -> Look:
    return Look([TINY, "--renderer", "llama3"])


@fault(SCRIPT, "wrong-renderer", produced="kimi markers with a ChatML tokenizer")
def test_markers_that_are_ordinary_text(lab: Lab) -> Look:
    return Look([TINY, "--renderer", "kimi_k2"])


@fault(SCRIPT, "wrong-renderer", produced="a base model rendered with a chat renderer")
def test_chat_renderer_for_a_base_model(lab: Lab) -> Look:
    return Look(["Qwen/Qwen3-8B-Base", "--tokenizer", TINY, "--renderer", "qwen3"])


@fault(SCRIPT, "template-mismatch", produced="the template's markers were edited")
def test_altered_template(lab: Lab) -> Look:
    folder = folders.tokenizer_copy(lab.tmp_path / "altered")
    folders.template_with(folder, "+ '<|im_end|>\\n'", "+ ' <|im_end|>\\n'")
    return Look([folder, "--renderer", "qwen3_instruct"])


@fault(SCRIPT, "eos-not-trained", produced="eos_token of the base model under a chat renderer")
def test_other_end_token(lab: Lab) -> Look:
    return Look([folders.other_end_token(folders.tokenizer_copy(lab.tmp_path / "eos"))])


@fault(SCRIPT, "tokenizer-drops-text", produced="a pre-tokenizer that forgets whitespace")
def test_tokenizer_without_spaces(lab: Lab) -> Look:
    return Look([folders.without_spaces(folders.tokenizer_copy(lab.tmp_path / "spaces"))])


@fault(SCRIPT, "special-token-ids-shifted", produced="config and vocabulary disagree by one")
def test_shifted_special_tokens(lab: Lab) -> Look:
    return Look([folders.shifted_markers(folders.tokenizer_copy(lab.tmp_path / "shifted"))])


@fault(SCRIPT, "token-id-out-of-range", produced="a config with fewer embedding rows than ids")
def test_ids_beyond_the_embedding(lab: Lab) -> Look:
    copy = folders.tokenizer_copy(lab.tmp_path / "small", whole_model=True)
    return Look([folders.small_vocabulary(copy)])


def with_renderer(lab: Lab, kind: str) -> Look:
    context = folders.broken_renderer(kind)
    lab.monkeypatch.setattr(lab, "_renderer", context, raising=False)  # lives as long as the lab
    return Look([TINY, "--renderer", context.__enter__()])


@fault(SCRIPT, "prompt-not-a-prefix", produced="a renderer whose prompt opens <think>")
def test_prompt_ends_otherwise(lab: Lab) -> Look:
    return with_renderer(lab, "prefix")


@fault(SCRIPT, "end-of-turn-not-trained", produced="a renderer that masks <|im_end|>")
def test_end_marker_masked(lab: Lab) -> Look:
    return with_renderer(lab, "end")


@fault(SCRIPT, "header-trained", produced="a renderer that trains on the prompt")
def test_prompt_trained(lab: Lab) -> Look:
    return with_renderer(lab, "header")


@fault(SCRIPT, "answer-not-trained", produced="a renderer that masks the first answer token")
def test_answer_masked(lab: Lab) -> Look:
    return with_renderer(lab, "answer")


@fault(SCRIPT, "answer-not-parsed", produced="a renderer whose parser replaces the text")
def test_parser_of_its_own(lab: Lab) -> Look:
    return with_renderer(lab, "parser")


@fault(SCRIPT, "think-tags-in-text", produced="reasoning as plain text for a thinking renderer")
def test_think_tags_in_text(lab: Lab) -> Look:
    data = rows(lab, [ASK, said("<think>15 + 27 is 42</think>It is 42.")])
    return Look([TINY, "--renderer", "qwen3", "--data", data])


@fault(
    SCRIPT, "thinking-with-disabled-renderer", produced="reasoning data, _disable_thinking renderer"
)
def test_reasoning_with_thinking_off(lab: Lab) -> Look:
    data = rows(lab, [ASK, thought("15 + 27 is 42", "It is 42.")])
    return Look([TINY, "--renderer", "qwen3_disable_thinking", "--data", data])


@fault(SCRIPT, "earlier-thinking-stripped", produced="reasoning in an earlier turn under qwen3")
def test_reasoning_in_an_earlier_turn(lab: Lab) -> Look:
    data = rows(lab, [ASK, thought("15 + 27", "42."), AGAIN, thought("2 x 42", "84.")])
    return Look([TINY, "--renderer", "qwen3", "--data", data])


@fault(SCRIPT, "special-tokens-in-text", produced="a chat template applied to the data before")
def test_template_applied_twice(lab: Lab) -> Look:
    marked = {"role": "user", "content": "<|im_start|>user\nWhat is 15 + 27?<|im_end|>"}
    return Look([TINY, "--data", rows(lab, [marked, said("42.")])])


@fault(SCRIPT, "tools-not-supported", produced="tool calls for a base model's plain format")
def test_tool_calls_without_a_format(lab: Lab) -> Look:
    call = {"type": "function", "id": "a", "function": {"name": "look", "arguments": "{}"}}
    data = rows(lab, [ASK, {**said("Let me see."), "tool_calls": [call]}])
    return Look(["Qwen/Qwen3-8B-Base", "--tokenizer", TINY, "--data", data])


# --- sampler against trainer


def connect(lab: Lab, rehearsal: Any) -> None:
    for name in ("TINKER_BASE_URL", "TINKER_API_KEY"):
        lab.monkeypatch.setenv(name, rehearsal.env[name])


def trained(rehearsal: Any, saves: Callable[[Any, Callable[[int], None]], tuple[str, ...]]) -> Any:
    """Train an adapter; ``saves`` says when to save what, and returns the paths."""
    import tinker

    trainer = (
        rehearsal.client().create_lora_training_client(rehearsal.model, rank=4, seed=1).result()
    )
    tokens = list(range(60, 90))
    count = len(tokens) - 1
    datum = tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tinker.TensorData(data=tokens[1:], dtype="int64", shape=[count]),
            "weights": tinker.TensorData(data=[1.0] * count, dtype="float32", shape=[count]),
        },
    )

    def steps(number: int) -> None:
        pending: list[Any] = []
        for _ in range(number):
            pending.append(trainer.forward_backward([datum], "cross_entropy"))
            pending.append(trainer.optim_step(tinker.AdamParams(learning_rate=5e-3)))
        for future in pending:
            future.result()

    return saves(trainer, steps)


def gap_look(rehearsal: Any, checkpoint: str, sampler: str, *more: str) -> Look:
    return Look(
        [
            *("--model", rehearsal.model, "--checkpoint", checkpoint, "--sampler", sampler),
            *("--n", "2", "--max-tokens", "8", *more),
        ]
    )


@fault(GAP, "sampler-weights-differ", produced="a sampler saved before the last three steps")
def test_stale_sampler(lab: Lab, rehearsal: Any) -> Look:
    connect(lab, rehearsal)

    def saves(trainer: Any, steps: Any) -> tuple[str, ...]:
        steps(2)
        early = trainer.save_weights_for_sampler("lab-early").result().path
        steps(3)
        return trainer.save_state("lab-late").result().path, early

    return gap_look(rehearsal, *trained(rehearsal, saves))


@fault(GAP, "adapter-not-applied", produced="a sampler that was saved before the first step")
def test_sampler_of_the_untrained_adapter(lab: Lab, rehearsal: Any) -> Look:
    connect(lab, rehearsal)

    def saves(trainer: Any, steps: Any) -> tuple[str, ...]:
        start = trainer.save_weights_for_sampler("lab-start").result().path
        steps(4)
        return trainer.save_state("lab-trained").result().path, start

    return gap_look(rehearsal, *trained(rehearsal, saves))


@fault(
    GAP, "temperature-in-logprobs", produced="samples at temperature 0.3 used for their logprobs"
)
def test_cold_samples(lab: Lab, rehearsal: Any) -> Look:
    connect(lab, rehearsal)
    return Look(["--model", rehearsal.model, "--n", "2", "--temperature", "0.3"])


@healthy(GAP, produced="sampler and trainer saved at the same step")
def test_same_weights(lab: Lab, rehearsal: Any) -> Look:
    connect(lab, rehearsal)

    def saves(trainer: Any, steps: Any) -> tuple[str, ...]:
        steps(3)
        path = trainer.save_weights_for_sampler("lab-same").result().path
        return trainer.save_state("lab-same").result().path, path

    return gap_look(rehearsal, *trained(rehearsal, saves))


# --- healthy renderers


@healthy(SCRIPT, produced="the tiny model with data of several kinds")
def test_chatml_model_and_data(lab: Lab) -> Look:
    system = {"role": "system", "content": "Be brief."}
    data = rows(lab, [ASK, said("42.")], [system, ASK, said("42."), AGAIN, said("84. \n")])
    return Look([TINY, "--data", data])


@healthy(SCRIPT, produced="SmolLM2, whose template adds a system message of its own")
def test_template_that_adds_a_system_message(lab: Lab) -> Look:
    return Look(["HuggingFaceTB/SmolLM2-135M-Instruct"])


@healthy(SCRIPT, produced="a base model with the plain format")
def test_base_model(lab: Lab) -> Look:
    data = rows(lab, [ASK, said("42.")])
    return Look(["Qwen/Qwen3-8B-Base", "--tokenizer", TINY, "--data", data])


@healthy(SCRIPT, produced="Qwen3's published tokenizer, data with reasoning")
def test_qwen3_as_published(lab: Lab) -> Look:
    data = rows(lab, [ASK, thought("15 + 27 is 42", "It is 42.")])
    return Look(["Qwen/Qwen3-8B", "--tokenizer", published_tokenizer("qwen3"), "--data", data])


@pytest.fixture(autouse=True)
def _unregister_renderers(lab: Lab):
    yield
    context = getattr(lab, "_renderer", None)
    if context is not None:
        context.__exit__(None, None, None)
