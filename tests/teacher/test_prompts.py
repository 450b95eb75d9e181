"""What the teacher is asked: no held-out prompt, and the system prompt before each."""

import pytest

from tinkerlab.errors import InputError
from tinkerlab.tasks import Task
from tinkerlab.teacher.prompts import require_system, under, without_held_out, without_system


def task(text, system=None, place="prompts.jsonl line 1"):
    told = [{"role": "system", "content": system}] if system else []
    return Task([*told, {"role": "user", "content": text}], place=place)


LONG = "Tell me in a few words where the old lighthouse of the harbour stands"


def test_held_out_prompts_are_left_out_whatever_their_case_spaces_and_system_message():
    tasks = [task("What is tea?"), task("What is  COFFEE?", "Be brief."), task("What is milk?")]
    found = without_held_out(tasks, [task("what is coffee?"), task("What is milk?", "Rhyme.")])
    assert [t.question for t in found.tasks] == ["What is tea?"]
    assert found.same == tasks[1:]
    assert found.near == []


def test_near_repeats_are_told_and_left_out_only_when_asked():
    tasks = [task(f"{LONG} today", place="a line 1"), task("Something else altogether, please")]
    held_out = [task(f"{LONG} now", place="b line 9")]
    found = without_held_out(tasks, held_out)
    assert [(pair.val.file, pair.train.file) for pair in found.near] == [("a line 1", "b line 9")]
    assert (found.tasks, found.same, found.near_left_out) == (tasks, [], False)
    strict = without_held_out(tasks, held_out, drop_near=True)
    assert (strict.tasks, strict.near_left_out) == (tasks[1:], True)
    assert strict.near == found.near


def test_the_system_prompt_is_put_before_each_prompt():
    asked = under("Be kind.", [task("Hello")])
    assert asked[0].prompt == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hello"},
    ]
    assert without_system(asked[0].prompt) == [{"role": "user", "content": "Hello"}]
    assert under(None, [task("Hello", "Own.")])[0].prompt[0]["content"] == "Own."


def test_a_prompt_with_a_system_message_of_its_own_would_not_show_the_given_one():
    with pytest.raises(InputError, match=r"x line 2: has a system message.*1 of 2 prompts"):
        under("Be kind.", [task("Hello"), task("Bye", "Own.", "x line 2")])


def test_there_must_be_a_system_prompt_to_drop():
    with pytest.raises(InputError, match="no system prompt to drop"):
        require_system([task("Hello")])
    require_system([task("Hello"), task("Bye", "Own.")])
