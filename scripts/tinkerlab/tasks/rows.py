"""From one JSON object to one task: where its prompt stands, and where its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinkerlab.data.messages import RowError, check_text, clean_messages, kind
from tinkerlab.tasks import mbpp
from tinkerlab.tasks.types import Task

# Names that public data sets use. Of each group a row must have at most one.
PROMPT_KEYS = ("messages", "prompt", "question", "problem", "input", "instruction")
ANSWER_KEYS = ("answer", "final_answer", "output", "ground_truth", "target")
# The answer where no other is (EleutherAI/hendrycks_math), else the working that leads to it
# (HuggingFaceH4/aime_2024, HuggingFaceH4/MATH-500).
WORKED_KEYS = ("solution",)
# DeepMath-103K has three reasoning traces with each problem, 48 kB a row: no grader needs them,
# and a row is kept in memory and sent to the grader's process with every completion.
LEFT_OUT = ("r1_solution_1", "r1_solution_2", "r1_solution_3")


def task_of(row: Mapping[str, Any], place: str) -> Task:
    """Read a row such as ``{"prompt": ..., "answer": ...}``.

    A prompt is text, or a list of messages. A conversation that ends with the assistant's reply
    and has no answer beside it is answered by that reply. A ``prompt`` that only repeats one of
    the ``messages``, as in HuggingFaceH4/no_robots, is no second prompt. Rows of MBPP get a
    prompt that names the function (``mbpp``).

    Raises:
        RowError: no prompt, several, or one that is unusable.
    """
    if mbpp.is_row(row):
        row = mbpp.with_prompt(row)
    if _is_repeated(row.get("prompt"), row.get("messages")):
        row = {key: value for key, value in row.items() if key != "prompt"}
    prompt_key = _only(row, PROMPT_KEYS, "prompt")
    if prompt_key is None:
        hint = f"it has {', '.join(list(row)[:8])}" if row else "it is empty"
        raise RowError(f'no prompt: give "prompt", "input" or "messages"; {hint}')
    answer_key = _only(row, ANSWER_KEYS, "answer") or _only(row, WORKED_KEYS, "answer")
    used = {prompt_key, answer_key, *LEFT_OUT}
    prompt = row[prompt_key]
    if prompt_key == "instruction" and row.get("input"):
        used.add("input")
        prompt = f"{_text(prompt, prompt_key)}\n\n{_text(row['input'], 'input')}"
    messages = (
        clean_messages(prompt)
        if isinstance(prompt, list)
        else [{"role": "user", "content": _text(prompt, prompt_key)}]
    )
    answer = row[answer_key] if answer_key is not None else _of_reward_model(row)
    if messages[-1]["role"] == "assistant":
        reply = messages.pop()
        if answer is None:
            answer = _spoken(reply)
        if not messages:
            raise RowError(f'"{prompt_key}" has no message before the assistant\'s')
    if any(not isinstance(message["content"], str) for message in messages):
        messages = [{**message, "content": _spoken(message)} for message in messages]
    fields = {key: value for key, value in row.items() if key not in used}
    return Task(messages, answer, fields, place)


def _only(row: Mapping[str, Any], names: tuple[str, ...], what: str) -> str | None:
    found = [name for name in names if row.get(name) is not None]
    if found == ["input", "instruction"]:
        return "instruction"
    if len(found) > 1:
        quoted = " and ".join(f'"{name}"' for name in found)
        raise RowError(f"{quoted} could both be the {what}: rename or remove one")
    return found[0] if found else None


def _is_repeated(prompt: Any, messages: Any) -> bool:
    return isinstance(messages, list) and any(
        isinstance(message, Mapping) and prompt is not None and message.get("content") == prompt
        for message in messages
    )


def _of_reward_model(row: Mapping[str, Any]) -> Any:
    """The answer of rows that verl trains on, such as DAPO-Math-17k's."""
    model = row.get("reward_model")
    return model.get("ground_truth") if isinstance(model, Mapping) else None


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise RowError(f'"{key}" must be text or a list of messages, not {kind(value)}')
    if not value.strip():
        raise RowError(f'"{key}" is empty')
    return check_text(value, f'"{key}"')


def _spoken(message: dict[str, Any]) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)
