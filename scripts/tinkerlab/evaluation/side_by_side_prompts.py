"""The prompts of a comparison: typed, from a file, or those that a run held out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tinkerlab.data.messages import RowError, clean_messages, clean_tools
from tinkerlab.errors import InputError
from tinkerlab.runs import jsonl
from tinkerlab.runs.folder import RunFolder
from tinkerlab.tasks import Task, files
from tinkerlab.tasks.rows import task_of

OWN_PROMPTS = "give prompts with --prompts FILE or --prompt TEXT"


def typed(texts: Sequence[str], place: str = "--prompt") -> list[Task]:
    """One prompt of one user message for each text.

    Raises:
        InputError: one of them is empty.
    """
    if not all(text.strip() for text in texts):
        raise InputError(f"{place}: an empty prompt")
    return [
        Task([{"role": "user", "content": text}], place=f"{place} {number}")
        for number, text in enumerate(texts, start=1)
    ]


def of_file(file: Path) -> list[Task]:
    """The prompts of a ``.txt`` (one a line) or of JSON lines, as ``tinkerlab.tasks`` reads them.

    Raises:
        InputError: it can't be read, has unusable lines, or nothing in it.
    """
    if file.suffix.lower() != ".txt":
        return files.read(file)
    try:
        lines = file.expanduser().read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise InputError(f"--prompts {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"--prompts {file}: not UTF-8 text") from None
    found = [
        Task([{"role": "user", "content": line.strip()}], place=f"{file.name} line {number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not found:
        raise InputError(f"--prompts {file}: no prompt in it; write one a line")
    return found


def held_out(folder: Path) -> list[Task]:
    """The prompts that a run held out, as its trainer left them in ``held_out.jsonl``.

    sl_trainer.py leaves conversations: the last reply is the reference. rl_trainer.py leaves
    prompts with answers, distill_trainer.py prompts alone, dpo_trainer.py pairs, whose chosen
    reply is the reference.

    Raises:
        InputError: the run held none out, or left them in another form.
    """
    file = RunFolder(folder).held_out_file
    rows = jsonl.read(file)
    if not rows:
        raise InputError(f"--run {folder} held no rows out; {OWN_PROMPTS}")
    found = []
    for number, row in enumerate(rows, start=1):
        try:
            found.append(_held_out(row, f"{file.name} line {number}"))
        except RowError as error:
            raise InputError(f"{file}:{number}: {error}; {OWN_PROMPTS}") from None
    return found


def _held_out(row: Mapping[str, Any], place: str) -> Task:
    if "answer" in row:  # RL; further fields are the grader's, and no part of the prompt
        return task_of({"messages": row["messages"], "answer": row["answer"]}, place)
    if "chosen" in row:
        return task_of({"messages": [*row["prompt"], *row["chosen"]]}, place)
    task = task_of(row, place)
    if task.answer is None:
        return task
    # With the thinking and the tool calls that the reply was trained to have.
    return replace(task, answer=message_text(clean_messages(row["messages"])[-1]))


def message_text(message: Mapping[str, Any]) -> str:
    """A message for people: thinking in tags, text, and tool calls as ``name(arguments)``.

    Takes plain JSON data and what a cookbook renderer parses out of a reply.
    """
    content = message.get("content") or ""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    lines = []
    for part in parts:
        if part.get("type") == "thinking":
            lines.append(f"<think>{part.get('thinking', '').strip()}</think>")
        else:
            lines.append(str(part.get("text", "")).strip())
    for call in message.get("tool_calls") or ():
        made = call if isinstance(call, dict) else call.model_dump()
        lines.append(f"{made['function']['name']}({made['function']['arguments']})")
    lines += [call.raw_text.strip() for call in message.get("unparsed_tool_calls") or ()]
    return "\n".join(line for line in lines if line)


def rendered(task: Task, renderer: Any, system_prompt: str | None) -> Task:
    """The task with the messages that are sent: system prompt, and the tools of its row.

    Raises:
        InputError: the renderer has no place for tools that the row declares or calls.
    """
    from tinkerlab.data import Row, conversation

    messages = [dict(message) for message in task.prompt]
    if system_prompt and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system_prompt})
    try:
        tools = tuple(clean_tools(task.row["tools"])) if task.row.get("tools") else ()
        return replace(task, prompt=conversation(Row(0, 0, messages, tools), renderer))
    except RowError as error:
        raise InputError(f"{task.place}: {error}") from None
