"""Rows with the columns of each benchmark's dataset, and what is right when the answer is B or 4.

Columns are those of the datasets' cards. Of each benchmark's rows the first has the answer that
the model of ``conftest.known`` gives, the second another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CHOICES = ["Mars", "Venus", "Io", "Pan"]
QUESTIONS = ("Which planet is hot?", "Which planet is red?")


@dataclass(frozen=True)
class Made:
    """Attributes: answers: the reference of each row, as a record must give it."""

    name: str
    dataset: str
    config: str
    split: str
    rows: list[dict[str, Any]]
    answers: list[str]


def _numbers(question: str, **answers: list[Any]) -> list[dict[str, Any]]:
    ((column, values),) = answers.items()
    return [{question: f"What is {n}+{n}?", column: v} for n, v in zip((2, 3), values, strict=True)]


MADE = [
    Made(
        "gsm8k",
        "openai/gsm8k",
        "main",
        "test",
        _numbers("question", answer=["2+2\n#### 4", "3+3\n#### 6"]),
        ["4", "6"],
    ),
    Made(
        "math500",
        "HuggingFaceH4/MATH-500",
        "default",
        "test",
        _numbers("problem", solution=["It is $\\boxed{4}$.", "It is $\\boxed{\\frac{1}{2}}$."]),
        ["4", "\\frac{1}{2}"],
    ),
    Made(
        "aime_2025",
        "MathArena/aime_2025",
        "default",
        "train",
        _numbers("problem", answer=[4, 0]),
        ["4", "0"],
    ),
    Made(
        "hmmt_feb_2025",
        "MathArena/hmmt_feb_2025",
        "default",
        "train",
        _numbers("problem", answer=["4", "\\sqrt{2}"]),
        ["4", "\\sqrt{2}"],
    ),
    Made(
        "mmlu_pro",
        "TIGER-Lab/MMLU-Pro",
        "default",
        "test",
        [
            {
                "question_id": n,
                "question": QUESTIONS[n],
                "options": CHOICES,
                "answer": "BA"[n],
                "answer_index": 1 - n,
            }
            for n in (0, 1)
        ],
        ["B", "A"],
    ),
    Made(
        "supergpqa",
        "m-a-p/SuperGPQA",
        "default",
        "train",
        [
            {
                "uuid": f"u{n}",
                "question": QUESTIONS[n],
                "options": CHOICES,
                "answer_letter": "BA"[n],
            }
            for n in (0, 1)
        ],
        ["B", "A"],
    ),
    Made(
        "ifeval",
        "google/IFEval",
        "default",
        "train",
        [
            {
                "key": n,
                "prompt": "Write two lines without commas.",
                "instruction_id_list": [kind],
                "kwargs": [{"num_words": words, "relation": relation}],
            }
            for n, (kind, words, relation) in enumerate(
                [
                    ("punctuation:no_comma", None, None),
                    ("length_constraints:number_words", 50, "at least"),
                ]
            )
        ],
        [
            '[{"id": "punctuation:no_comma"}]',
            '[{"id": "length_constraints:number_words", "num_words": 50, "relation": "at least"}]',
        ],
    ),
    Made(
        "longbench",
        "THUDM/LongBench-v2",
        "default",
        "train",
        [
            {
                "context": "Venus is hot. Mars is red.",
                "question": QUESTIONS[n],
                **{f"choice_{letter}": c for letter, c in zip("ABCD", CHOICES, strict=True)},
                "answer": "BA"[n],
                "domain": "sky",
            }
            for n in (0, 1)
        ],
        ["B", "A"],
    ),
]
BY_NAME = {made.name: made for made in MADE}

# As Idavidrein/gpqa has them: no column says at which place the right answer stands.
GPQA = [
    {
        "Question": f"Which planet is number {n}?",
        "Correct Answer": f"right {n}",
        **{f"Incorrect Answer {k}": f"wrong {n}{k}" for k in (1, 2, 3)},
    }
    for n in range(8)
]
# As ceval/ceval-exam has them, and edinburgh-dawg/mmlu-redux, in a config for each subject.
CEVAL = [
    {
        "id": 0,
        "question": "哪颗行星是热的?",
        **dict(zip("ABCD", CHOICES, strict=True)),
        "answer": "B",
    }
]
REDUX = [
    {"question": QUESTIONS[0], "choices": CHOICES, "answer": 1, "error_type": "ok"},
    {"question": QUESTIONS[1], "choices": CHOICES, "answer": 3, "error_type": "wrong_groundtruth"},
]
