"""exact, numeric and contains against decisions made by hand; what they refuse."""

import pytest

from tinkerlab.errors import InputError
from tinkerlab.grading import Attempt, load_grader, require_usable
from tinkerlab.tasks import Task


def correct(spec, completion, answer):
    return load_grader(spec).grade([Attempt(completion, answer=answer)])[0].correct


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        ("Paris", "Paris", True),
        (" Paris\n", "Paris", True),
        ("paris", "Paris", False),
        ("It is Paris", "Paris", False),
        ("I think so. <answer>Paris</answer>", "Paris", True),
        (r"\boxed{B} or \boxed{C}", "B", False),
        ("e\u0301", "é", True),  # the same letter, composed and not
        ("7", 7, True),
        ("", "Paris", False),
        ("no", ["yes", "no"], True),
    ],
)
def test_exact(completion, answer, expected):
    assert correct("exact", completion, answer) is expected


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        ("The total is 1,234 apples.", 1234, True),
        ("1234.0", "1,234", True),
        ("The answer is 7. Not 8.", 7, True),
        ("maybe 7, or rather 8", 7, False),
        ("\u22125 degrees", -5, True),
        ("5", -5, False),
        ("1000001", 1000000, False),  # whole numbers are compared exactly
        ("0.3333333", "1/3", True),
        ("0.33", "1/3", False),
        ("50%", 50, True),
        ("50%", 0.5, False),
        ("$18", "She makes 9 * 2 = <<9*2=18>>18.\n#### 18", True),  # as GSM8K writes answers
        ("", 0, False),
        ("1e999999", 1, False),
        ("2 or 3", [3, 4], True),
        ("3/0", 3, False),
    ],
)
def test_numeric(completion, answer, expected):
    assert correct("numeric", completion, answer) is expected


def test_numeric_tolerance_is_the_users():
    assert correct("numeric:0.05", "0.33", "1/3") is True
    assert correct("numeric:0", "0.3333333", "1/3") is False


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        ("The capital is paris.", "Paris", True),
        ("Parisian", "Paris", False),
        ("It costs 1.5", "5", False),
        ("It costs 15", "5", False),
        ("minus -5", "5", False),
        ("It costs 5.", "5", True),
        ("new\n  york city", "New York", True),
        ("C++ it is", "C++", True),
        ("", "Paris", False),
    ],
)
def test_contains(completion, answer, expected):
    assert correct("contains", completion, answer) is expected


def test_grades_say_what_was_found():
    grade = load_grader("numeric").grade([Attempt("so it is -1,250 m", answer=3)])[0]
    assert (grade.score, grade.correct, grade.extracted) == (0.0, False, "-1,250")


@pytest.mark.parametrize(
    ("spec", "phrase"),
    [
        ("numerc", "did you mean numeric"),
        ("", "no grader ''"),
        ("exact:3", "takes no argument"),
        ("regex", "needs an argument"),
        ("numeric:2", "tolerance"),
        ("numeric:x", "tolerance"),
        ("nowhere.py:score", "no file"),
        ("rewards.py", "name the function"),
        ("json_schema:nowhere.json", "No such file"),
        ("judge:default", "--judge-model"),
    ],
)
def test_unknown_graders_are_one_line(spec, phrase):
    with pytest.raises(InputError, match=phrase) as caught:
        load_grader(spec)
    assert "\n" not in str(caught.value)


def test_rows_that_cannot_be_graded_are_named_by_line():
    message = [{"role": "user", "content": "?"}]
    rows = [Task(message, 1, place="a.jsonl line 1"), Task(message, None, place="a.jsonl line 2")]
    with pytest.raises(InputError, match=r"1 of 2 prompts.*a\.jsonl line 2: no answer"):
        require_usable(load_grader("numeric"), rows)
    with pytest.raises(InputError, match=r"line 2: the answer 'many' is not one number"):
        require_usable(load_grader("numeric"), [rows[0], Task(message, "many", place="line 2")])
    require_usable(load_grader("numeric"), rows[:1])
