"""The look before training: each reason not to begin, and its healthy neighbour."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rl_tools import completion, config, group

from tinkerlab.training.rl.preflight import Preflight, bins
from tinkerlab.training.rl.rollouts import Group


def look(*groups: Group, **changes: Any) -> Preflight:
    return Preflight(groups, config(Path("unused"), **changes))


def right(text: str = "42", **changes: Any) -> Any:
    return completion(1.0, text, correct=True, extracted="42", **changes)


def wrong(text: str = "it is 7", **changes: Any) -> Any:
    return completion(0.0, text, correct=False, **{"extracted": "7", **changes})


MIXED = group(right(), wrong())
# name of the reason: groups that have it.
REFUSED = {
    "too_easy": [group(right("42"), right("so 42"))] * 2,
    "too_hard": [group(wrong("7"), wrong("so 7"))] * 2,
    "unmixed": [group(right("42"), right("so 42")), group(wrong("7"), wrong("so 7"))],
    "truncated": [group(wrong("7 and", truncated=True), wrong("so"))] * 2,
    "identical": [group(wrong("7"), wrong("7"))] * 2,
    "parse_failures": [group(wrong("hm", extracted=None), wrong("7"))] * 2,
    "constant_reward": [group(completion(0.3, "a"), completion(0.3, "b"))] * 2,
    "grader_errors": [group(wrong("7"), completion(0.0, "!", error="exit code 1"))] * 2,
}


@pytest.mark.parametrize("reason", REFUSED)
def test_without_signal_the_reason_is_named(reason: str) -> None:
    refusal = look(*REFUSED[reason]).refusal()
    assert refusal and refusal.reason == reason
    assert "\n" not in refusal.message


@pytest.mark.parametrize("reason", [name for name in REFUSED if name != "grader_errors"])
def test_one_group_with_signal_is_enough(reason: str) -> None:
    assert look(*REFUSED[reason], MIXED).refusal() is None


def test_a_grader_that_fails_everywhere_is_refused_and_elsewhere_said() -> None:
    broken = completion(-1.0, "boo", error="timed out after 5 s")
    refusal = look(group(broken, broken)).refusal()
    assert refusal and "timed out after 5 s; the first, at tasks.jsonl:1: 'boo'" in refusal.message
    partly = look(MIXED, group(broken, wrong()))
    assert partly.refusal() is None
    assert "failed on 25% of the completions, which count as 0" in partly.warnings()[0]


def test_constant_rewards_that_differ_between_tasks() -> None:
    groups = [group(completion(0.1 * n, "a"), completion(0.1 * n, "b")) for n in range(3)]
    refusal = look(*groups).refusal()
    assert refusal and refusal.reason == "unmixed"
    assert "differ between tasks but never within a group" in refusal.message


def test_the_report_shows_distribution_signal_and_examples() -> None:
    shown = "\n".join(look(MIXED, group(wrong("7\nis it"), wrong("no"))).lines())
    assert "2 groups of 4 completions" in shown
    assert "reward                0 | ######################################## 3" in shown
    assert "reward                1 | ############## 1" in shown
    assert "mean 0.250; 1 of 2 groups have signal" in shown
    assert "example with reward 1, at tasks.jsonl:1" in shown
    assert "prompt: Say 0." in shown


def test_its_document_is_json() -> None:
    document = look(MIXED, group(wrong(), wrong(extracted=None))).document()
    assert json.loads(json.dumps(document)) == document
    assert (document["ok"], document["groups_with_signal"]) == (True, 1)
    assert document["no_answer_found"] == 0.25
    assert sum(bar["count"] for bar in document["reward_histogram"]) == 4


def test_little_signal_is_a_warning_and_enough_is_none() -> None:
    dull = group(wrong("a"), wrong("b"))
    assert "only 1 of 6 groups have signal" in look(MIXED, *[dull] * 5).warnings()[0]
    assert look(MIXED, dull).warnings() == []


def test_many_rewards_fall_into_ten_bars() -> None:
    counted = bins([n / 100 for n in range(100)])
    assert len(counted) == 10
    assert sum(count for _, _, count in counted) == 100
    assert bins([1.0, 0.0, 1.0]) == [(0.0, 0.0, 1), (1.0, 1.0, 2)]
