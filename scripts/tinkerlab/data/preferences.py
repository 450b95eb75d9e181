"""Preference pairs: one prompt, and the reply that is preferred over another.

A row is ``{"prompt", "chosen", "rejected"}`` (a prompt of text or messages, replies of text or
messages), ``{"chosen", "rejected"}`` as two conversations that differ in their last message, or
tinker-cookbook's ``{"comparison", "label"}``. A reply is one assistant message: it is what the
cookbook's renderers train by default, and what a policy samples in one turn.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinkerlab.data.messages import Messages, RowError, check_text, clean_messages, kind, text_of
from tinkerlab.data.reading import BadRow, Row, describe_bad, read_objects
from tinkerlab.data.splits import make_splits
from tinkerlab.data.words import counted, of_rows
from tinkerlab.errors import InputError

FORMAT = "prompt/chosen/rejected"
CONVERSATIONS = "chosen/rejected conversations"
COMPARISON = "comparison/label"
TIE = "tie"

SAMPLED = 100  # lines that tell a file of pairs from one of conversations


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """One usable pair.

    Attributes:
        index: position among the source's usable pairs, from 0.
        line: line of the file, or position in the builder's data set, from 1.
        prompt: messages that both replies answer.
        chosen, rejected: an assistant message each, which differ.
    """

    index: int
    line: int
    prompt: Messages
    chosen: dict[str, Any]
    rejected: dict[str, Any]
    file: str = ""

    @property
    def place(self) -> str:
        """Where the pair stands: ``pairs.jsonl line 7``."""
        return f"{self.file} line {self.line}" if self.file else f"line {self.line}"

    def conversation(self, side: str) -> Row:
        """The prompt with the reply of ``side``, as a row that the renderers take."""
        messages = [*self.prompt, getattr(self, side)]
        return Row(self.index, self.line, messages, (), self.file)

    def document(self) -> dict[str, Any]:
        """The pair as a row of a preference file."""
        return {"prompt": self.prompt, "chosen": [self.chosen], "rejected": [self.rejected]}

    def key(self) -> str:
        """Equal for pairs that say the same."""
        return json.dumps(self.document(), sort_keys=True, ensure_ascii=False)


@dataclass
class LoadedPairs:
    """What a source of pairs holds.

    Attributes:
        name: the file or builder, for messages.
        format: name of the format that most of its rows have.
        notes: harmless oddities that were worked around, and how many ties were left out.
    """

    name: str
    pairs: list[PreferencePair]
    bad: list[BadRow]
    format: str = FORMAT
    notes: list[str] = field(default_factory=list)

    @property
    def summary(self) -> str:
        """One line: ``pairs.jsonl: 128 pairs, format preference prompt/chosen/rejected``."""
        bad = f", {len(self.bad)} bad" if self.bad else ""
        return (
            f"{self.name}: {counted(len(self.pairs), 'pair')}{bad}, format preference {self.format}"
        )

    @property
    def refused(self) -> str:
        """``2 of 9 rows can't be used``, with the reason where all have the same one."""
        reasons = {row.reason for row in self.bad}
        why = f" ({reasons.pop()})" if len(reasons) == 1 else ""
        return f"{of_rows(len(self.bad), len(self.pairs) + len(self.bad))} can't be used{why}"

    def refuse_bad(self, skip_bad_rows: bool) -> None:
        """Stop at bad rows, unless they are to be skipped and others are left.

        Raises:
            InputError: lists the first ones.
        """
        if self.bad and not skip_bad_rows:
            raise InputError(
                f"{self.name}: {self.refused}; mend them, or set skip_bad_rows=true to train "
                f"without them\n{describe_bad(self.bad)}"
            )
        if not self.pairs:
            listed = f"\n{describe_bad(self.bad)}" if self.bad else ""
            raise InputError(f"{self.name}: no usable pair{listed}")


def is_preference_file(path: str | Path) -> bool:
    """Whether most of the file's first objects are preference pairs.

    Raises:
        InputError: the file can't be read, holds nothing, or isn't JSON lines.
    """
    found, _ = read_objects(path, limit=SAMPLED)
    objects = [row for _, row in found if isinstance(row, dict)]
    return 2 * sum(_format(row) is not None for row in objects) > len(objects)


def scan_pairs(path: str | Path) -> LoadedPairs:
    """Read a file of pairs; bad rows are reported in the result, not raised.

    Raises:
        InputError: the file can't be read, holds nothing, or isn't JSON lines.
    """
    found, notes = read_objects(path)
    return collect(Path(path).name, found, notes)


def collect(
    name: str, rows: Iterable[tuple[int, dict[str, Any] | RowError]], notes: Sequence[str] = ()
) -> LoadedPairs:
    """The pairs of numbered rows, and the rows that are none."""
    loaded = LoadedPairs(name, [], [], notes=list(notes))
    formats: Counter[str] = Counter()
    unused: Counter[str] = Counter()
    ties = 0
    for number, row in rows:
        try:
            if isinstance(row, RowError):
                raise row
            used = _format(row)
            if used is None:
                raise RowError(_unknown(row))
            formats[used] += 1
            if used == COMPARISON and row["label"] == "Tie":
                ties += 1
                continue
            prompt, chosen, rejected = _READERS[used](row)
            _require_difference(chosen, rejected)
            index = len(loaded.pairs)
            loaded.pairs.append(PreferencePair(index, number, prompt, chosen, rejected, name))
            unused.update(key for key in row if key not in _KEYS[used])
        except RowError as error:
            loaded.bad.append(BadRow(number, str(error)))
    if formats:
        loaded.format = formats.most_common(1)[0][0]
    if ties:
        loaded.notes.append(f"{counted(ties, TIE)} left out: they prefer neither reply")
    if unused:
        keys = ", ".join(f"{key} ({counted(n, 'row')})" for key, n in unused.most_common(8))
        loaded.notes.append(f"keys without a use here: {keys}")
    return loaded


def split_pairs(
    train: Sequence[PreferencePair], val: Sequence[PreferencePair] | None, **sizes: Any
) -> tuple[list[PreferencePair], list[PreferencePair], list[str]]:
    """(train, held out, notes): pairs of one prompt always stay on one side.

    Args:
        sizes: as ``splits.make_splits`` takes them.

    Raises:
        InputError: too few prompts to give both sides one.
    """
    splits = make_splits(_prompts(train), _prompts(val) if val is not None else None, **sizes)
    held_out = train if val is None else val
    return (
        [train[row.index] for row in splits.train],
        [held_out[row.index] for row in splits.val],
        splits.notes,
    )


def shared_pairs(
    train: Sequence[PreferencePair], val: Sequence[PreferencePair]
) -> list[tuple[PreferencePair, PreferencePair]]:
    """(held-out pair, training pair) for each held-out pair that also trains."""
    known = {pair.key(): pair for pair in train}
    return [(pair, known[pair.key()]) for pair in val if pair.key() in known]


def contradictions(pairs: Sequence[PreferencePair]) -> list[tuple[PreferencePair, PreferencePair]]:
    """Pairs of pairs that prefer opposite replies to one prompt."""
    seen: dict[str, PreferencePair] = {}
    found = []
    for pair in pairs:
        turned = PreferencePair(pair.index, pair.line, pair.prompt, pair.rejected, pair.chosen)
        if turned.key() in seen:
            found.append((pair, seen[turned.key()]))
        seen.setdefault(pair.key(), pair)
    return found


def repeated(pairs: Sequence[PreferencePair]) -> int:
    """How many pairs repeat an earlier one."""
    return len(pairs) - len({pair.key() for pair in pairs})


def _prompts(pairs: Sequence[PreferencePair]) -> list[Row]:
    """The pairs' prompts as rows: those with equal prompts count as repeats and stay together."""
    return [Row(place, pair.line, pair.prompt, (), pair.file) for place, pair in enumerate(pairs)]


def _format(row: dict[str, Any]) -> str | None:
    if "comparison" in row and "label" in row:
        return COMPARISON
    if "chosen" in row and "rejected" in row:
        return FORMAT if "prompt" in row else CONVERSATIONS
    return None


def _from_prompt(row: dict[str, Any]) -> tuple[Messages, dict[str, Any], dict[str, Any]]:
    prompt = _prompt(row["prompt"], '"prompt"')
    return prompt, _reply(row, "chosen", prompt), _reply(row, "rejected", prompt)


def _from_conversations(row: dict[str, Any]) -> tuple[Messages, dict[str, Any], dict[str, Any]]:
    for side in ("chosen", "rejected"):
        if not isinstance(row[side], list):
            raise RowError(f'without "prompt", "{side}" must be a list of messages')
    chosen, rejected = (
        _messages(row["chosen"], '"chosen"'),
        _messages(row["rejected"], '"rejected"'),
    )
    if chosen[:-1] != rejected[:-1]:
        raise RowError(
            'without "prompt", "chosen" and "rejected" must be one conversation up to their last '
            "message"
        )
    prompt = _prompt(row["chosen"][:-1], '"chosen"')
    return prompt, _one_reply(chosen[-1:], '"chosen"'), _one_reply(rejected[-1:], '"rejected"')


def _from_comparison(row: dict[str, Any]) -> tuple[Messages, dict[str, Any], dict[str, Any]]:
    comparison, label = row["comparison"], row["label"]
    if label not in ("A", "B"):
        raise RowError(f'"label" must be "A", "B" or "Tie", not {json.dumps(label)[:40]}')
    names = ("prompt_conversation", "completion_A", "completion_B")
    if not isinstance(comparison, dict) or not all(name in comparison for name in names):
        raise RowError(f'"comparison" must be an object with {", ".join(names)}')
    prompt = _prompt(comparison["prompt_conversation"], '"prompt_conversation"')
    a, b = (_reply(comparison, name, prompt) for name in names[1:])
    return (prompt, a, b) if label == "A" else (prompt, b, a)


_READERS: dict[str, Callable[[dict[str, Any]], tuple[Messages, dict[str, Any], dict[str, Any]]]] = {
    FORMAT: _from_prompt,
    CONVERSATIONS: _from_conversations,
    COMPARISON: _from_comparison,
}
_KEYS = {
    FORMAT: ("prompt", "chosen", "rejected"),
    CONVERSATIONS: ("chosen", "rejected"),
    COMPARISON: ("comparison", "label"),
}


def _prompt(value: Any, where: str) -> Messages:
    if isinstance(value, str):
        if not value.strip():
            raise RowError(f"{where} is empty")
        return [{"role": "user", "content": check_text(value, where)}]
    messages = _messages(value, where)
    if messages[-1]["role"] == "assistant":
        raise RowError(f"{where} ends with an assistant message, so nothing asks for a reply")
    return messages


def _reply(row: dict[str, Any], side: str, prompt: Messages) -> dict[str, Any]:
    value, where = row[side], f'"{side}"'
    if isinstance(value, str):
        if not value.strip():
            raise RowError(f"{where} is empty")
        return {"role": "assistant", "content": check_text(value, where)}
    messages = _messages(value, where)
    # Some data sets repeat the prompt in both replies.
    if len(messages) > len(prompt) and messages[: len(prompt)] == prompt:
        messages = messages[len(prompt) :]
    return _one_reply(messages, where)


def _one_reply(messages: Messages, where: str) -> dict[str, Any]:
    roles = [message["role"] for message in messages]
    if roles != ["assistant"]:
        raise RowError(
            f"{where} must be text or one assistant message after the prompt, not "
            f"{', '.join(roles)}"
        )
    return messages[0]


def _messages(value: Any, where: str) -> Messages:
    if not isinstance(value, list):
        raise RowError(f"{where} must be text or a list of messages, not {kind(value)}")
    try:
        messages = clean_messages(value)
    except RowError as error:
        raise RowError(f"{where}: {error}") from None
    if any("trainable" in message for message in messages):
        raise RowError(f'{where}: "trainable" has no meaning in a pair: its replies are trained')
    return messages


def _require_difference(chosen: dict[str, Any], rejected: dict[str, Any]) -> None:
    if text_of(chosen).strip() == text_of(rejected).strip():
        raise RowError("chosen and rejected are identical: the pair holds no preference")


def _unknown(row: dict[str, Any]) -> str:
    if not row:
        return "an empty object"
    keys = ", ".join(repr(key[:40]) for key in list(row)[:8])
    known = ", ".join("+".join(keys) for keys in _KEYS.values())
    return f"no preference pair: has the keys {keys}; known formats have {known}"
