"""Token sequences on which two models are compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tinkerlab.errors import InputError

# Of several kinds on purpose: a layer that is wrong in one way may matter in one of them only.
_BUILT_IN = (
    "The river had risen during the night, and by morning the lower meadow was a lake with "
    "fence posts standing in it. Nobody in the village could remember a spring like this one.",
    "def median(values):\n    ordered = sorted(values)\n    middle = len(ordered) // 2\n"
    "    if len(ordered) % 2:\n        return ordered[middle]\n"
    "    return (ordered[middle - 1] + ordered[middle]) / 2\n",
    "Question: A train covers 240 km in 3 hours and then 100 km in 2 hours. What is its mean "
    "speed?\nAnswer: 340 km in 5 hours is 68 km per hour.",
    "Dear Ms Okafor,\n\nthank you for your letter of 12 May. We have looked into the matter and "
    "can confirm that the second invoice was sent in error.\n\nYours sincerely,",
    "1. Heat the oil in a wide pan.\n2. Add the onions and a pinch of salt.\n3. Stir for ten "
    "minutes until they are soft, but not brown.\n",
    "Der Zug nach Köln fährt heute von Gleis 7. Le café est fermé le lundi. ¿Dónde está la "
    "biblioteca? 今日はいい天気です。",
    '{"name": "sensor-17", "readings": [21.5, 21.7, 22.0], "unit": "°C", "ok": true}',
    "user: Which planet is the largest?\nassistant: Jupiter. It has more than twice the mass of "
    "all the other planets together.",
)


def read_texts(path: Path | None, tokenizer: Any, *, at_most: int) -> list[str]:
    """Return up to ``at_most`` texts: of the JSONL file, or built-in ones.

    A line may hold ``text``, ``messages``, or any string fields (``prompt`` and ``completion``,
    ``instruction``, ``input`` and ``output``), which are joined in their order.

    Raises:
        InputError: the file can't be read, or a line is none of these.
    """
    if path is None:
        return list(_BUILT_IN[:at_most])
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--text {path}: {error}: give a JSONL file") from error
    texts = []
    for number, line in enumerate(lines, 1):
        if len(texts) == at_most:
            break
        if line.strip():
            texts.append(_text_of(line, f"{path}:{number}", tokenizer))
    if not texts:
        raise InputError(f"--text {path}: no line holds anything")
    return texts


def _text_of(line: str, where: str, tokenizer: Any) -> str:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InputError(f"{where}: not JSON ({error})") from error
    if not isinstance(row, dict):
        raise InputError(f'{where}: not a JSON object like {{"text": "..."}}')
    messages = row.get("messages")
    if isinstance(messages, list) and messages:
        if not all(isinstance(m, dict) and isinstance(m.get("content"), str) for m in messages):
            raise InputError(f"{where}: messages must have a string content each")
        if getattr(tokenizer, "chat_template", None):
            return tokenizer.apply_chat_template(messages, tokenize=False)
        return "\n".join(f"{m.get('role', 'user')}: {m['content']}" for m in messages)
    strings = [value for value in row.values() if isinstance(value, str) and value]
    if not strings:
        raise InputError(f"{where}: no text, messages or other string field")
    return "\n".join(strings)


def tokenize(texts: list[str], tokenizer: Any, *, max_tokens: int) -> list[list[int]]:
    """Encode ``texts``, cut to ``max_tokens``; those of a single token say nothing and go.

    Raises:
        InputError: none is left.
    """
    sequences = [tokenizer.encode(text, add_special_tokens=False)[:max_tokens] for text in texts]
    sequences = [sequence for sequence in sequences if len(sequence) > 1]
    if not sequences:
        raise InputError("no text of two tokens or more to compare the models on: see --text")
    return sequences
