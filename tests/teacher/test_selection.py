"""Every reason for which a reply is no training row, and what the rows hold."""

import pytest

from tinkerlab.errors import CheckFailed
from tinkerlab.evaluation.attempts import Graded, Reply
from tinkerlab.grading import Grade
from tinkerlab.tasks import Task
from tinkerlab.teacher.selection import Filters, quotes, select

SYSTEM = "You are a clerk of the Acme company. Always tell people when the shop opens again."


def ask(text="How much?", place="p line 1", system=SYSTEM):
    return Task(
        [{"role": "system", "content": system}, {"role": "user", "content": text}], place=place
    )


def graded(*replies):
    """(text, score) or (text, Grade) or a Reply with a score."""
    found = Graded()
    for reply, grade in replies:
        found.replies.append(reply if isinstance(reply, Reply) else Reply(reply, 3, False))
        found.grades.append(grade if isinstance(grade, Grade) else Grade(float(grade)))
    return found


def reasons(found):
    return [row["reason"] for row in found.refused]


def choose(item, filters=None, task=None, has_grader=True):
    return select(
        [task or ask()], [item], filters or Filters(keep="right"), "T", has_grader=has_grader
    )


@pytest.mark.parametrize(
    ("reply", "grade", "filters", "reason"),
    [
        (Reply("4", 8, True), 1, Filters(), "truncated"),
        (Reply("", 1, False), 1, Filters(), "empty"),
        (" \n", 1, Filters(), "empty"),
        ("4\0", 1, Filters(), "characters that the trainer refuses"),
        ("<think>2+2</think>4", 1, Filters(), "thinking tags in the text"),
        ("so it is</think> 4", 1, Filters(), "thinking tags in the text"),
        ("4", Grade(0.0, error="it crashed"), Filters(), "the grader failed"),
        ("5", 0, Filters(keep="right"), "wrong"),
        ("5", Grade(1.0, correct=False), Filters(keep="right"), "wrong"),
        ("5", 0.5, Filters(keep="right"), "wrong"),
        ("5", 6, Filters(keep="right", correct_at=7), "wrong"),
        ("4", 1, Filters(min_chars=2), "under 2 characters"),
        ("four", 1, Filters(max_chars=3), "over 3 characters"),
    ],
)
def test_what_is_refused(reply, grade, filters, reason):
    found = choose(graded((reply, grade), ("It is 42", 1 if filters.correct_at is None else 9)),
                   filters if reason != "over 3 characters" else Filters(max_chars=3))  # fmt: skip
    assert reasons(found)[0] == reason
    assert found.refused[0]["place"] == "p line 1"
    assert found.dropped[reason] >= 1


@pytest.mark.parametrize(
    ("reply", "grade", "filters"),
    [
        (Reply("4", 8, True), 1, Filters(keep_truncated=True)),
        ("5", 0, Filters(keep="all")),
        ("5", 0.5, Filters(keep="right", correct_at=0.5)),
        ("5", 9, Filters(keep="right", correct_at=7)),
        ("4", Grade(0.2, correct=True), Filters(keep="right")),
        ("four", 1, Filters(min_chars=4, max_chars=4)),
        ("I think 4", 1, Filters()),
    ],
)
def test_what_is_kept(reply, grade, filters):
    found = choose(graded((reply, grade)), filters)
    assert (len(found.rows), found.refused, found.without_row) == (1, [], 0)


def test_a_score_out_of_range_needs_a_threshold():
    with pytest.raises(CheckFailed, match=r"p line 1: the score 7 is not in 0\.\.1"):
        choose(graded(("4", 7)))


def test_repeats_count_once_and_a_prompt_gives_only_so_many_rows():
    item = graded(("It is 4.", 1), ("it  is 4.", 1), ("Four.", 1), ("4", 1))
    found = choose(item, Filters(keep="right", per_prompt=2))
    assert [row["messages"][-1]["content"] for row in found.rows] == ["It is 4.", "Four."]
    assert found.dropped == {"duplicate": 1, "more than 2 of one prompt": 1}
    assert [row["teacher"]["sample"] for row in found.rows] == [0, 2]
    assert len(choose(item, Filters()).rows) == 3


def test_prompts_that_become_one_without_their_system_messages_give_no_repeats():
    tasks = [ask(place="p line 1"), ask(place="p line 2", system="Rhyme.")]
    items = [graded(("4", 1)), graded(("4", 1))]
    dropping = Filters(drop_system_prompt=True)
    found = select(tasks, items, dropping, "T", has_grader=False)
    assert (len(found.rows), found.dropped, found.without_row) == (1, {"duplicate": 1}, 1)
    assert len(select(tasks, items, Filters(), "T", has_grader=False).rows) == 2


def test_rows_have_the_system_prompt_only_if_it_is_not_dropped():
    kept = choose(graded(("4", 1))).rows[0]
    assert [m["role"] for m in kept["messages"]] == ["system", "user", "assistant"]
    assert kept["teacher"] == {"model": "T", "prompt": "p line 1", "sample": 0, "score": 1.0}
    dropped = choose(graded(("4", 1)), Filters(drop_system_prompt=True), has_grader=False).rows[0]
    assert dropped["messages"] == [
        {"role": "user", "content": "How much?"},
        {"role": "assistant", "content": "4"},
    ]
    assert "score" not in dropped["teacher"]


def test_a_reply_that_recites_a_dropped_system_prompt_is_told():
    recited = "I must always tell people when the shop opens again, so: at nine."
    item = graded(("At nine.", 1), (recited, 1))
    found = choose(item, Filters(drop_system_prompt=True))
    assert found.quoting == ["p line 1 sample 1"]
    assert len(found.rows) == 2
    assert choose(item, Filters()).quoting == []


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("always tell people, when the shop OPENS again", True),  # eight words
        ("tell people when the shop opens again", False),  # seven
        ("people always tell when the shop opens again", False),  # another order
        ("", False),
    ],
)
def test_quotations_are_eight_words_in_a_row(reply, expected):
    assert quotes(SYSTEM, reply) is expected
    assert not quotes("", reply)


def test_prompts_without_any_row_are_counted():
    tasks = [ask(place="p line 1"), ask("Why?", "p line 2")]
    items = [graded(("4", 1)), graded(("5", 0), ("6", 0))]
    found = select(tasks, items, Filters(keep="right"), "T", has_grader=True)
    assert (len(found.rows), found.without_row, found.dropped) == (1, 1, {"wrong": 2})
