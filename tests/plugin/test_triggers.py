"""The two descriptions load for what users say, each for its own (skills/triggers.yaml)."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from plugin_layout import SKILLS, skill_names, split_frontmatter

GROUPS: dict[str, list[dict[str, Any]]] = yaml.safe_load(
    (SKILLS / "triggers.yaml").read_text(encoding="utf-8")
)
DESCRIPTIONS = {
    name: split_frontmatter(SKILLS / name / "SKILL.md")[0]["description"].lower()
    for name in skill_names()
}
CASES = [(group, entry) for group, entries in GROUPS.items() for entry in entries]


def claims(description: str, words: list[str]) -> bool:
    """Whether every word that carries a request stands in the description."""
    return all(word in description for word in words)


def test_the_list_is_whole() -> None:
    assert {group: len(entries) for group, entries in GROUPS.items()} == {
        "research": 20,
        "debug": 10,
        "neither": 10,
    }
    requests = [entry["request"] for _, entry in CASES]
    assert len(set(requests)) == len(requests)


@pytest.mark.parametrize(("group", "entry"), CASES, ids=lambda value: str(value)[:60])
def test_a_request_finds_its_skill_and_no_other(group: str, entry: dict[str, Any]) -> None:
    found = [name for name, text in DESCRIPTIONS.items() if claims(text, entry["words"])]
    missing = {
        name: [word for word in entry["words"] if word not in text]
        for name, text in DESCRIPTIONS.items()
    }
    assert found == ([] if group == "neither" else [group]), missing


@pytest.mark.parametrize(("group", "entry"), CASES, ids=lambda value: str(value)[:60])
def test_its_words_are_the_request_s(group: str, entry: dict[str, Any]) -> None:
    """At least one of the words is what the user said; the others may be what it means."""
    assert any(word in entry["request"].lower() for word in entry["words"])
