"""math, regex, JSON schema and reasoning-gym against decisions made without them."""

import json

import pytest

from tinkerlab.errors import InputError
from tinkerlab.grading import Attempt, load_grader
from tinkerlab.tasks import load_tasks


@pytest.fixture(scope="module")
def math():
    grader = load_grader("math")
    yield grader
    grader.close()


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        (r"\boxed{\frac{1}{2}}", "0.5", True),
        (r"\boxed{0.5}", r"\frac12", True),
        (r"so \boxed{3}, no, \boxed{4}", "4", True),
        (r"so \boxed{3}, no, \boxed{4}", "3", False),
        ("The answer is $x^2+2x+1$", "(x+1)^2", True),
        (r"\boxed{1,234}", 1234, True),
        (r"\boxed{-5}", "\u22125", True),
        (r"\boxed{5}", "-5", False),
        (r"\boxed{\sqrt{8}}", r"2\sqrt{2}", True),
        (r"\boxed{12\text{ cm}}", "12", True),
        (r"\boxed{\text{north}}", "north", True),
        (r"\boxed{\{3,1,2\}}", r"\{1,2,3\}", True),
        ("The answer is 42.", "42", True),
        ("", "42", False),
        (r"\boxed{", "42", False),
        (r"\boxed{7}", r"We add: $3 + 4 = \boxed{7}$.", True),  # as MATH writes solutions
    ],
)
def test_math(math, completion, answer, expected):
    assert math.grade([Attempt(completion, answer=answer)])[0].correct is expected


def test_math_survives_what_a_model_writes(math, tmp_path):
    mark = tmp_path / "ran"
    hostile = rf"\boxed{{__import__('pathlib').Path('{mark}').touch()}}"
    grades = math.grade(
        [
            Attempt(hostile, answer="1"),
            Attempt(r"\boxed{9^{9^{9^{9}}}}", answer="1"),
            Attempt("a" * 1_000_000, answer="1"),
            Attempt(r"\boxed{2}", answer="2"),
        ]
    )
    assert [grade.correct for grade in grades[:1] + grades[2:]] == [False, False, True]
    assert grades[1].score == 0.0
    assert not mark.exists()


@pytest.mark.parametrize(
    ("pattern", "completion", "answer", "expected"),
    [
        (r"\bok\b", "all ok here", None, True),
        (r"^ok$", "not ok", None, False),
        (r"Answer: (\d+)", "Answer: 3 ... Answer: 4", "4", True),
        (r"Answer: (\d+)", "Answer: 3 ... Answer: 4", 3, False),
        (r"Answer: (\d+)", "Answer: 3", None, True),
        (r"(?P<unit>kg) (?P<answer>\w+)", "kg five", "five", True),
        (r"Answer: (\d+)", "none", "3", False),
    ],
)
def test_regex(pattern, completion, answer, expected):
    grader = load_grader(f"regex:{pattern}")
    try:
        assert grader.grade([Attempt(completion, answer=answer)])[0].correct is expected
    finally:
        grader.close()


def test_a_pattern_that_never_ends_is_a_failed_grade():
    grader = load_grader(r"regex:^(a+)+$", timeout=0.5)
    try:
        stuck, fine = grader.grade([Attempt("a" * 60 + "!"), Attempt("aa")])
    finally:
        grader.close()
    assert "no result within 0.5 s" in str(stuck.error)
    assert fine.correct is True


def test_json_schema(tmp_path):
    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer", "minimum": 0}},
        "required": ["age"],
        "additionalProperties": False,
    }
    file = tmp_path / "person.json"
    file.write_text(json.dumps(schema))
    grader = load_grader(f"json_schema:{file}")
    completions = {
        '{"age": 3}': True,
        'Here:\n```json\n{"age": 3}\n```\nDone.': True,
        '{"age": -1}': False,
        '{"age": 3, "name": "x"}': False,
        '{"age": NaN}': False,
        '{"age": 3': False,
        "I am 3": False,
        "[" * 100_000: False,
        "": False,
    }
    try:
        grades = grader.grade([Attempt(text) for text in completions])
    finally:
        grader.close()
    assert [grade.correct for grade in grades] == list(completions.values())
    assert not any(grade.error for grade in grades)


def test_a_schema_that_is_none_is_refused(tmp_path):
    file = tmp_path / "schema.json"
    file.write_text('{"type": "objekt"}')
    with pytest.raises(InputError, match="not a JSON schema"):
        load_grader(f"json_schema:{file}")
    file.write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        load_grader(f"json_schema:{file}")
    with pytest.raises(InputError, match="unterminated"):
        load_grader("regex:(")


@pytest.mark.parametrize("name", ["chain_sum", "countdown", "arc_agi", "letter_counting"])
def test_reasoning_gyms_own_scorers(name):
    tasks = load_tasks(f"reasoning_gym:{name}", limit=3)
    grader = load_grader("reasoning_gym")
    try:
        for task in tasks:
            right, wrong, empty = grader.grade(
                [
                    Attempt(text, task.prompt, task.answer, task.row)
                    for text in (f"<answer>{task.answer}</answer>", "<answer>zzz</answer>", "")
                ]
            )
            assert (right.score, right.correct) == (1.0, True)
            assert wrong.correct is False
            assert (empty.score, empty.correct) == (0.0, False)
    finally:
        grader.close()


def test_a_stated_number_is_scored_without_the_words_around_it():
    task = load_tasks("reasoning_gym:chain_sum", limit=1)[0]
    grader = load_grader("reasoning_gym")
    try:
        said = Attempt(f"Adding up, I get {task.answer}.", task.prompt, task.answer, task.row)
        assert grader.grade([said])[0].score == 1.0
    finally:
        grader.close()
