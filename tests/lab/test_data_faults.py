"""Training data that is wrong, and what check_data.py says of it."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from fault_lab import Lab, Look, fault, healthy


def chat(user: str, assistant: str | None, system: str = "Be brief.") -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    if assistant is not None:
        messages.append({"role": "assistant", "content": assistant})
    return {"messages": messages}


def rows(lab: Lab, found: list[Any], *arguments: str) -> Look:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in found]
    return Look(["--data", lab.write("data.jsonl", "\n".join(lines) + "\n"), *arguments])


GOOD = [chat(f"What is {i} plus {i}?", f"It is {2 * i}.") for i in range(40)]


@fault("check_data.py", "bad_rows", produced="chats that end with the user: no token is trained")
def test_nothing_to_train_on(lab: Lab) -> Look:
    return rows(lab, [chat(f"Question {i}?", None) for i in range(8)])


@fault("check_data.py", "bad_rows", produced="half a line, an unknown role, an empty reply")
def test_broken_rows(lab: Lab) -> Look:
    broken = json.dumps(GOOD[0])[:50]
    unknown = {"messages": [{"role": "bot", "content": "x"}, {"role": "assistant", "content": "y"}]}
    return rows(lab, [*GOOD, broken, unknown, chat("a", "")])


@fault("check_data.py", "bad_rows", produced="pairs whose two sides are the same")
def test_pairs_without_a_preference(lab: Lab) -> Look:
    pair = {"prompt": "Name a colour.", "chosen": "Blue.", "rejected": "Blue."}
    return rows(lab, [pair] * 4)


@fault("check_data.py", "contamination", produced="evaluation rows that stand in the training data")
def test_evaluation_rows_in_training(lab: Lab) -> Look:
    held_out = lab.write("val.jsonl", "".join(json.dumps(row) + "\n" for row in GOOD[:10]))
    return rows(lab, GOOD, "--val", str(held_out))


@fault("check_data.py", "thinking_in_text", produced="<think> tags inside plain assistant text")
def test_thinking_in_plain_text(lab: Lab) -> Look:
    return rows(lab, [chat(f"{i}+{i}?", f"<think>twice {i}</think>\n\n{2 * i}") for i in range(40)])


@healthy("check_data.py", produced="the cookbook's example chats, with a system message each")
def test_good_chats(lab: Lab) -> Look:
    text = files("tinker_cookbook").joinpath("example_data/conversations.jsonl").read_text()
    system = {"role": "system", "content": "You are a helpful assistant."}
    documents = [json.loads(line) for line in text.splitlines()]
    found = [{"messages": [system, *d["messages"]]} for d in documents]
    return rows(lab, found)
