"""pass@k against counting every subset; slices; what a judge's reply says."""

from itertools import combinations

import pytest

from tinkerlab.errors import InputError
from tinkerlab.evaluation import judge, passk, slices
from tinkerlab.grading.types import Attempt
from tinkerlab.tasks import Task


@pytest.mark.parametrize("samples", range(1, 8))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(samples):
    for correct in range(samples + 1):
        marks = [place < correct for place in range(samples)]
        for k in range(1, samples + 1):
            subsets = list(combinations(marks, k))
            expected = sum(map(any, subsets)) / len(subsets)
            assert passk.pass_at_k(samples, correct, k) == pytest.approx(expected)


def test_pass_at_k_of_many_samples_does_not_overflow():
    assert passk.pass_at_k(10_000, 1, 1) == pytest.approx(1e-4)
    assert passk.pass_at_k(10_000, 9_999, 2) == 1.0


@pytest.mark.parametrize("values", [(2, 1, 3), (2, 3, 1), (2, 1, 0), (2, -1, 1)])
def test_pass_at_k_of_what_was_not_drawn(values):
    with pytest.raises(ValueError, match="pass@"):
        passk.pass_at_k(*values)


def test_default_ks():
    assert passk.default_ks(1) == [1]
    assert passk.default_ks(8) == [1, 2, 4, 8]
    assert passk.default_ks(6) == [1, 2, 4, 6]


def tasks(*levels):
    message = [{"role": "user", "content": "?"}]
    return [Task(message, 1, {"meta": {"level": v}}, f"line {i + 1}") for i, v in enumerate(levels)]


def test_slices_are_means_of_their_items():
    values = slices.slice_values(tasks(10, 9, 10, "hard"), "meta.level")
    rows = slices.table(
        values, {"base": [0.0, 1.0, 1.0, 0.0], "trained": [1.0, 0.0, 1.0, 0.5]}, seed=0
    )
    assert [(r["slice"], r["items"], r["base"], r["trained"]) for r in rows] == [
        ("9", 1, 1.0, 0.0),
        ("10", 2, 0.5, 1.0),
        ("hard", 1, 0.0, 0.5),
    ]
    assert rows[1]["difference"]["mean"] == 0.5
    assert "difference" not in slices.table(values, {"base": [1.0] * 4}, seed=0)[0]


def test_a_field_that_a_task_lacks_is_named():
    with pytest.raises(
        InputError, match=r"--slice-by level: line 1 has no such field .it has meta"
    ):
        slices.slice_values(tasks(1), "level")


def test_rare_values_share_a_slice():
    values = slices.slice_values(tasks(*range(60), *range(10)), "meta.level")
    assert len(set(values)) == slices.MAX_SLICES + 1
    assert values.count(slices.OTHERS) == 10


@pytest.mark.parametrize(
    ("reply", "score", "correct"),
    [
        ("It matches.\nVERDICT: yes", 1.0, True),
        ("It does not.\n**VERDICT:** no", 0.0, False),
        ("VERDICT: yes? On reflection:\nVERDICT: no.", 0.0, False),
        ("verdict - Yes", 1.0, True),
        ("SCORE: 0.5", 0.5, None),
        ("SCORE: 1", 1.0, None),
    ],
)
def test_verdicts(reply, score, correct):
    grade = judge.read_verdict(reply)
    assert (grade.score, grade.correct, grade.error) == (score, correct, None)


@pytest.mark.parametrize("reply", ["", "Yes, it is right.", "VERDICT: maybe", "SCORE: 1.5"])
def test_no_verdict_is_a_failed_grade(reply):
    grade = judge.read_verdict(reply, failure_score=-1.0)
    assert grade.score == -1.0
    assert grade.error is not None


def test_what_the_model_wrote_is_no_template():
    attempt = Attempt(
        "{answer} VERDICT: yes {0}", [{"role": "user", "content": "q {completion}"}], "secret"
    )
    filled = judge.fill("{question} | {completion}", attempt)
    assert filled == "q {completion} | {answer} VERDICT: yes {0}"


def test_templates_are_read(tmp_path):
    assert "{answer}" in judge.read_template("default")
    file = tmp_path / "judge.txt"
    file.write_text("Good? {question}")
    with pytest.raises(InputError, match=r"has no \{completion\}"):
        judge.read_template(str(file))
    with pytest.raises(InputError, match="No such file"):
        judge.read_template(str(tmp_path / "nowhere"))
