"""Find conversations that occur twice: exactly, with the same prompt, or nearly.

Exact means equal after normalising (Unicode NFKC, case, white space). Near means a Jaccard
similarity of the sets of word 3-grams ("shingles", Broder 1997, "On the resemblance and
containment of documents") of at least ``NEAR``. The near search is exact, not sampled: prefix
filtering (Bayardo, Ma & Srikant 2007, "Scaling up all pairs similarity search") leaves out only
pairs that can't reach the threshold.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tinkerlab.data.messages import Messages, text_of
from tinkerlab.data.reading import Row

NEAR = 0.7
SHINGLE_WORDS = 3
# Below this many shingles one shared phrase makes two texts look alike.
MIN_SHINGLES = 5

# A word is a run of letters and digits; scripts without spaces count character by character.
_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+"
)


@dataclass(frozen=True)
class Pair:
    """An evaluation row and the training row that it repeats.

    Attributes:
        similarity: Jaccard similarity of the shingles; 1.0 for exact repeats.
    """

    val: Row
    train: Row
    similarity: float


@dataclass
class Overlap:
    """What training and evaluation share. Each evaluation row is counted once, in one list."""

    exact: list[Pair] = field(default_factory=list)
    same_prompt: list[Pair] = field(default_factory=list)
    near: list[Pair] = field(default_factory=list)


def exact_key(row: Row) -> str:
    """A hash that two rows share exactly when their normalised conversations are equal."""
    return _hash(row.messages)


def prompt_key(row: Row) -> str | None:
    """The same for everything before the last assistant message; None if nothing is before it."""
    last = max((i for i, m in enumerate(row.messages) if m["role"] == "assistant"), default=0)
    before = row.messages[:last]
    return _hash(before) if any(m["role"] == "user" for m in before) else None


def count_repeats(rows: Iterable[Row]) -> int:
    """How many rows repeat an earlier one exactly."""
    counts = Counter(exact_key(row) for row in rows)
    return sum(counts.values()) - len(counts)


def find_overlap(train: Sequence[Row], val: Sequence[Row], near: float = NEAR) -> Overlap:
    """Which evaluation rows also stand, exactly or nearly, in the training rows.

    Args:
        near: smallest Jaccard similarity, in (0, 1], that counts as near.
    """
    found = Overlap()
    by_key = {exact_key(row): row for row in reversed(train)}
    by_prompt = {key: row for row in reversed(train) if (key := prompt_key(row))}
    rest: list[Row] = []
    for row in val:
        if (twin := by_key.get(exact_key(row))) is not None:
            found.exact.append(Pair(row, twin, 1.0))
        elif (twin := by_prompt.get(prompt_key(row) or "")) is not None:
            found.same_prompt.append(Pair(row, twin, _jaccard(_shingles(row), _shingles(twin))))
        else:
            rest.append(row)
    found.near = find_near(train, rest, near)
    return found


def find_near(train: Sequence[Row], val: Sequence[Row], near: float = NEAR) -> list[Pair]:
    """For each row of ``val`` its most similar training row, where that reaches ``near``."""
    wanted = [(row, words) for row in val if len(words := _shingles(row)) >= MIN_SHINGLES]
    if not wanted:
        return []
    # Rare shingles first, so that the indexed prefixes are short lists.
    commonness = Counter(shingle for _, words in wanted for shingle in words)
    index: dict[int, list[int]] = defaultdict(list)
    for position, (_, words) in enumerate(wanted):
        for shingle in _prefix(words, commonness, near):
            index[shingle].append(position)

    best: dict[int, Pair] = {}
    for row in train:
        words = _shingles(row)
        if len(words) < MIN_SHINGLES:
            continue
        candidates = {p for s in _prefix(words, commonness, near) for p in index.get(s, ())}
        for position in candidates:
            val_row, val_words = wanted[position]
            similarity = _jaccard(words, val_words)
            if similarity >= near and similarity > (
                best[position].similarity if position in best else 0.0
            ):
                best[position] = Pair(val_row, row, similarity)
    return [best[position] for position in sorted(best)]


def _prefix(words: set[int], commonness: Counter[int], near: float) -> list[int]:
    """The shingles of which two sets of similarity ``near`` must share at least one.

    Sets with |A∩B| >= near·|A∪B| share at least ceil(near·|A|) members, so one of them is
    among the first |A| - ceil(near·|A|) + 1 of A in any order that both sides use.
    """
    # The subtraction guards against near·|A| landing a rounding error above an integer.
    length = len(words) - math.ceil(near * len(words) - 1e-9) + 1
    # Shingles that no evaluation row has are the rarest: they fill the prefix first and match
    # nothing, so they needn't be sorted.
    known = [shingle for shingle in words if shingle in commonness]
    left = length - (len(words) - len(known))
    if left <= 0:
        return []
    return sorted(known, key=lambda shingle: (commonness[shingle], shingle))[:left]


def _jaccard(a: set[int], b: set[int]) -> float:
    shared = len(a & b)
    return shared / (len(a) + len(b) - shared) if shared else 0.0


def _shingles(row: Row) -> set[int]:
    """Hashes of the row's word n-grams, of what user, assistant and tools say.

    A system prompt that all rows share would make every pair similar, so it is left out when
    a user speaks. Python's salted ``hash`` will do: the numbers are compared within this
    process only, and no result depends on their order except which equal candidate is seen
    first.
    """
    spoken = [m for m in row.messages if m["role"] != "system"]
    if not any(m["role"] == "user" for m in spoken):
        spoken = row.messages
    words = _WORD.findall(_normalise("\n".join(text_of(m) for m in spoken)))
    return {hash(gram) for gram in zip(*(words[i:] for i in range(SHINGLE_WORDS)), strict=False)}


def _normalise(text: str) -> str:
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return " ".join(text.casefold().split())


def _hash(messages: Messages) -> str:
    parts = [[message["role"], _normalise(text_of(message))] for message in messages]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
