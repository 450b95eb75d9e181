"""Which answer a completion states: cases worked out by hand."""

import time
from fractions import Fraction

import pytest

from tinkerlab.grading import texts


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,234", [1234]),
        ("1{,}234 and 12,345,678.5", [1234, Fraction("12345678.5")]),
        ("1\u202f234\u00a0567", [1234567]),
        (r"1\,234", [1234]),
        ("10 200 300", [10, 200, 300]),  # a plain space separates numbers
        ("1,23", [1, 23]),
        ("-5", [-5]),
        ("\u22125", [-5]),
        ("x=-3", [-3]),
        ("5-3", [5, 3]),
        ("10\u20135", [10, 5]),  # an en dash is a range
        ("$-5, -$5, $1,234.50", [-5, -5, Fraction("1234.5")]),
        ("50% of 12.", [50, 12]),
        ("3/4", [Fraction(3, 4)]),
        ("-1/2", [Fraction(-1, 2)]),
        ("5 1/2 cups", [Fraction(11, 2)]),
        ("2½", [Fraction(5, 2)]),
        (r"-\frac{1}{2}", [Fraction(-1, 2)]),
        (r"\dfrac{3}{4}", [Fraction(3, 4)]),
        ("1/0", []),
        ("1.5e3", [1500]),
        (r"1.5 \times 10^{3}", [1500]),
        ("2 * 10^-1", [Fraction(1, 5)]),
        ("10^3, 2**10 and 10^{-1}", [1000, 1024, Fraction(1, 10)]),
        ("9^99999", []),
        ("0^-1", []),
        (r"\frac{-3}{4} and \frac12 and 1\frac{1}{2}", [Fraction(-3, 4), Fraction(1, 2), 1.5]),
        ("**42**, `43`, $44$, \\(45\\), 46km", [42, 43, 44, 45, 46]),
        ("1e999999999", []),
        ("9" * 5000, []),
        (".5", [Fraction(1, 2)]),
        ("１２", [12]),
        ("2024-01-05", [2024, 1, 5]),
        ("", []),
        ("no digits", []),
    ],
)
def test_numbers(text, values):
    assert [number.value for number in texts.numbers(text)] == values


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>5</answer> then <answer> 6 </answer>", "6"),
        ("<Answer>5</ANSWER>", "5"),
        (r"<answer>5</answer> \boxed{6}", "5"),
        (r"\boxed{1} and \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\boxed{3}}", "3"),
        (r"\boxed{4", None),  # cut off
        ("work 1+1\n#### 1,000", "1,000"),
        ("**Final Answer:** 12 apples.", "12 apples"),
        ("The answer is 3.5 kg. I checked it.", "3.5 kg"),
        ("the answer is\n12", "12"),
        ("The answer is:\n\n  **12**\n\nChecked 3 times.", "12"),
        ("__Answer__ = 12", "12"),
        ("answer to life", None),
        ("", None),
    ],
)
def test_marked_answer(text, answer):
    assert texts.marked_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("The answer is 42. I checked it 3 times.", 42),
        ("Answer: 3 + 4 = 7", 7),
        ("The answer is 42 because 6*7=42", 42),
        ("The answer is unclear. 7", 7),
        ("First 3, then 4", 4),
        (r"\boxed{x = 5}", 5),
        ("nothing", None),
    ],
)
def test_final_number(text, value):
    found = texts.final_number(text)
    assert (found and found.value) == value


@pytest.mark.parametrize(
    "unit",
    [
        "1 ",
        "9",
        r"\boxed{",
        "<answer>",
        "answer is ",
        "```\n",
        "1,",
        "-",
        "1/",
        "2^",
        "answer is \n \n",
        "{",
        "####\n",
    ],
)
def test_huge_completions_cost_little(unit):
    text = unit * (3_000_000 // len(unit))
    started = time.process_time()
    texts.final_number(text)
    texts.marked_answer(text)
    texts.fenced_blocks(texts.tail(text))
    # Not a speed claim: quadratic code would take minutes here.
    assert time.process_time() - started < 10


def test_fenced_blocks():
    text = "so\n```python\na = 1\n```\nor\n```\nb\n```\n```py\ncut = 2"
    assert texts.fenced_blocks(text) == [("python", "a = 1\n"), ("", "b\n"), ("py", "cut = 2")]
