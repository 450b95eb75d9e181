"""Overlap between training and evaluation is found: exact, same prompt, near; and only that."""

from __future__ import annotations

import random
from itertools import product

import pytest

from tinkerlab.data import duplicates
from tinkerlab.data.duplicates import find_near, find_overlap
from tinkerlab.data.reading import Row

LONG = "The quick brown fox jumps over the lazy dog while seven wizards watch from the old bridge"


def row(index: int, question: str, answer: str = "Yes.", system: str = "") -> Row:
    messages = [{"role": "system", "content": system}] if system else []
    messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return Row(index, index + 1, messages)


@pytest.mark.parametrize(
    "twin",
    [
        row(0, "Is it Café time?"),
        row(0, "is it   CAFE\u0301\ntime?"),
        row(0, "Is it Café time?", "yes."),
    ],
)
def test_exact_ignores_case_space_and_unicode_form(twin: Row) -> None:
    found = find_overlap([row(5, "Other?"), twin], [row(9, "Is it Café time?")])
    assert [(pair.val.line, pair.train.line) for pair in found.exact] == [(10, 1)]
    assert not found.near and not found.same_prompt


@pytest.mark.parametrize(
    "other",
    [
        row(0, "Is it Café time!?"),
        row(0, "Is it Café time?", "No."),
        row(0, "Is it Café time?", system="Be brief."),
        Row(0, 1, [{"role": "user", "content": "Is it Café time?"}]),
    ],
)
def test_exact_does_not_ignore_more(other: Row) -> None:
    assert not find_overlap([other], [row(9, "Is it Café time?")]).exact


def test_tool_calls_and_thinking_tell_rows_apart() -> None:
    def with_content(content: list[dict[str, str]], name: str) -> Row:
        call = {"type": "function", "id": None, "function": {"name": name, "arguments": "{}"}}
        ask = {"role": "user", "content": "Go."}
        return Row(0, 1, [ask, {"role": "assistant", "content": content, "tool_calls": [call]}])

    thought, other = [[{"type": "thinking", "thinking": text}] for text in ("Hm.", "Aha.")]
    rows = [with_content(c, n) for c, n in product((thought, other), ("left", "right"))]
    assert len({duplicates.exact_key(r) for r in rows}) == 4


def test_one_prompt_with_two_answers() -> None:
    found = find_overlap([row(0, "Name a colour.", "Blue.")], [row(1, "Name a colour.", "Red.")])
    assert [(pair.val.line, pair.train.line) for pair in found.same_prompt] == [(2, 1)]
    assert not found.exact


def test_near_finds_a_rewording_and_names_the_most_similar_row() -> None:
    train = [
        row(0, LONG.replace("old bridge", "new tower roof")),
        row(1, LONG.replace("bridge", "tower")),
        row(2, "Something else entirely, about the price of fish and the weather of Tuesday"),
    ]
    (pair,) = find_overlap(train, [row(7, LONG), row(8, "Short one?")]).near
    assert (pair.val.line, pair.train.line) == (8, 2)
    assert duplicates.NEAR <= pair.similarity < 1


def test_a_shared_system_prompt_makes_nothing_similar() -> None:
    found = find_overlap(
        [row(0, "What is the boiling point of pure water in degrees?", system=LONG)],
        [row(1, "Which year did the second big war in Europe end?", system=LONG)],
    )
    assert not found.near


def test_scripts_without_spaces_are_compared_by_character() -> None:
    text = "東京は日本の首都であり世界で最も人口の多い都市の一つです"
    (pair,) = find_overlap([row(0, text.replace("首都", "都"))], [row(1, text)]).near
    assert pair.similarity > 0.7


def test_the_filtered_search_finds_what_comparing_all_pairs_does() -> None:
    rng = random.Random(4)
    words = [f"w{i}" for i in range(30)]
    texts = [" ".join(rng.choices(words, k=rng.randint(4, 25))) for _ in range(40)]
    # Copies with a few words changed, so that similarities spread over the whole range.
    copies = []
    for number, text in enumerate(texts):
        changed = text.split()
        for _ in range(number % 5):
            changed[rng.randrange(len(changed))] = rng.choice(words)
        copies.append(" ".join(changed))
    train = [row(i, text) for i, text in enumerate(texts)]
    val = [row(i, text) for i, text in enumerate(copies)]
    for near in (0.3, 0.5, 0.7, 0.9, 1.0):
        sets = [[duplicates._shingles(r) for r in side] for side in (train, val)]
        usable = [[s for s in side if len(s) >= duplicates.MIN_SHINGLES] for side in sets]
        expected = [
            best
            for b in usable[1]
            if (best := max(len(a & b) / len(a | b) for a in usable[0])) >= near
        ]
        found = find_near(train, val, near)
        assert [pair.similarity for pair in found] == expected
        assert 5 < len(found) < len(usable[1])
