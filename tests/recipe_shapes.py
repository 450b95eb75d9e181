"""Small local data of the shape that each recipe's dataset has, with right and wrong replies.

Columns are those of the published datasets. A right reply is one that the recipe's own reward
must give 1, a wrong one 0.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Shape:
    """Rows of one recipe, and what its reward must say of replies to the first of them."""

    rows: Sequence[dict[str, Any]]
    held_out: Sequence[dict[str, Any]] = ()
    right: Sequence[str] = ()
    wrong: Sequence[str] = ()
    overrides: dict[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> tuple[Path, Path | None]:
        """The training file and, if there is one, the held-out file."""
        files: list[Path | None] = []
        for name, rows in (("data.jsonl", self.rows), ("held-out.jsonl", self.held_out)):
            file = folder / name
            file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            files.append(file if rows else None)
        assert files[0] is not None
        return files[0], files[1]


def gsm8k(first: int, count: int) -> list[dict[str, Any]]:
    """openai/gsm8k: ``question``, and ``answer`` with its working."""
    return [
        {
            "question": f"Ann has {n} pears and buys {n}. How many has she?",
            "answer": f"She has {n}+{n}=<<{n}+{n}={2 * n}>>{2 * n} pears.\n#### {2 * n}",
        }
        for n in range(first, first + count)
    ]


def deepmath(first: int, count: int) -> list[dict[str, Any]]:
    """zwhe99/DeepMath-103K: ``question``, ``final_answer``, and columns that are not needed."""
    return [
        {
            "question": f"Find $x$ if ${n + 1} x = 1$.",
            "final_answer": f"\\dfrac{{1}}{{{n + 1}}}",
            "difficulty": 2.0,
            "topic": "Mathematics -> Algebra",
            "r1_solution_1": "Divide.",
        }
        for n in range(first, first + count)
    ]


def aime(first: int, count: int) -> list[dict[str, Any]]:
    """HuggingFaceH4/aime_2024: an ``answer`` of three digits, and its working beside it."""
    return [
        {
            "id": n,
            "problem": f"Find {n} + 25.",
            "solution": f"Add them, so $\\boxed{{{n + 25}}}$.",
            "answer": f"{n + 25:03}",
            "url": "https://example.org",
            "year": "2024",
        }
        for n in range(first, first + count)
    ]


def matharena(first: int, count: int) -> list[dict[str, Any]]:
    """MathArena/aime_2025: ``problem`` and an integer ``answer``."""
    return [
        {"problem_idx": n, "problem": f"Find {n} + 25.", "answer": n + 25, "problem_type": []}
        for n in range(first, first + count)
    ]


def dapo(first: int, count: int) -> list[dict[str, Any]]:
    """BytedTsinghua-SIA/DAPO-Math-17k, the form that verl trains on."""
    ask = (
        "Solve the following math problem step by step. The last line of your response should be"
        " of the form Answer: $Answer (without quotes) where $Answer is the answer to the"
        ' problem.\n\n{}\n\nRemember to put your answer on its own line after "Answer:".'
    )
    return [
        {
            "data_source": "math_dapo",
            "prompt": [{"role": "user", "content": ask.format(f"Find {n} + 25.")}],
            "ability": "MATH",
            "reward_model": {"ground_truth": str(n + 25), "style": "rule-lighteval/MATH_v2"},
            "extra_info": {"index": f"{n}"},
        }
        for n in range(first, first + count)
    ]


def mbpp(first: int, count: int) -> list[dict[str, Any]]:
    """google-research-datasets/mbpp, the full part."""
    return [
        {
            "task_id": n,
            "text": f"Write a function that adds {n} to a number.",
            "code": f"def add_{n}(x):\r\n    return x + {n}",
            "test_list": [f"assert add_{n}(1) == {1 + n}", f"assert add_{n}(5) == {5 + n}"],
            "test_setup_code": "",
            "challenge_test_list": [],
        }
        for n in range(first, first + count)
    ]


def orders(first: int, count: int) -> list[dict[str, Any]]:
    """Rows of one's own, as the page of the recipe makes them: a shown example, an answer."""
    example = [
        {"role": "user", "content": "Zoe wants 7 cups."},
        {"role": "assistant", "content": '{"name": "Zoe", "item": "cups", "count": 7}'},
    ]
    return [
        {
            "prompt": [*example, {"role": "user", "content": f"Please send {n} pens to Ann."}],
            "answer": {"name": "Ann", "item": "pens", "count": n},
        }
        for n in range(first, first + count)
    ]


def no_robots(first: int, count: int) -> list[dict[str, Any]]:
    """HuggingFaceH4/no_robots: ``prompt``, ``prompt_id``, ``messages``, ``category``."""
    rows = []
    for n in range(first, first + count):
        prompt = f"Write a line about the number {n}."
        messages = [
            {"role": "user", "content": prompt},
            {"role": "assistant", "content": f"{n} is a number that comes after {n - 1}."},
        ]
        if n % 3 == 0:
            messages.insert(0, {"role": "system", "content": "You are brief."})
        rows.append(
            {"prompt": prompt, "prompt_id": f"{n:064x}", "messages": messages, "category": "Chat"}
        )
    return rows


def teacher(first: int, count: int) -> list[dict[str, Any]]:
    """What ``sample_teacher.py`` writes: messages, and where they come from."""
    return [
        {
            "messages": [
                {"role": "user", "content": f"What is {n} plus 1?"},
                {"role": "assistant", "content": f"{n} plus 1 equals {n + 1}."},
            ],
            "teacher": {"model": "T", "prompt": f"prompts.jsonl line {n}", "sample": 0},
        }
        for n in range(first, first + count)
    ]


def pairs(first: int, count: int) -> list[dict[str, Any]]:
    """Preference pairs."""
    return [
        {"prompt": f"Say {n}.", "chosen": f"The number is {n}.", "rejected": str(n)}
        for n in range(first, first + count)
    ]


_NUMBERS = Shape(
    gsm8k(1, 24),
    gsm8k(50, 6),
    right=["1 + 1 = 2\n#### 2", "\\boxed{2}", "She has 2 pears.", "The answer is 2."],
    wrong=["#### 3", "I do not know.", "", "2 pears, no: 3"],
)
_CODE = Shape(
    mbpp(2, 24),
    mbpp(50, 6),
    right=["```python\ndef add_2(x):\n    return x + 2\n```", "def add_2(x): return 2 + x"],
    # The first test alone is shown: an answer to it and to no other must earn nothing.
    wrong=["```python\ndef add_2(x):\n    return 3\n```", "def add(x): return x + 2", "no", ""],
)

# Dataset, its configs (None: it has but one) and their splits, as the Hub has them.
PUBLISHED: dict[str, dict[str | None, set[str]]] = {
    "openai/gsm8k": {"main": {"train", "test"}},
    "google-research-datasets/mbpp": {
        part: {"train", "test", "validation", "prompt"} for part in ("full", "sanitized")
    },
    "zwhe99/DeepMath-103K": {None: {"train"}},
    "HuggingFaceH4/aime_2024": {None: {"train"}},
    "MathArena/aime_2025": {None: {"train"}},
}

SHAPES: dict[str, Shape] = {
    "verifiable": Shape(
        orders(1, 40),
        right=[
            '{"name": "Ann", "item": "pens", "count": 1}',
            '{"count":1,"item":"pens","name":"Ann"}',
        ],
        wrong=["1 pens for Ann", '{"name": "Zoe", "item": "cups", "count": 7}', '["Ann"]', ""],
    ),
    "gsm8k": _NUMBERS,
    "gsm8k-fast": _NUMBERS,
    "aime": Shape(
        deepmath(1, 40),
        aime(1, 6),
        right=["\\boxed{\\frac{1}{2}}", "$x = 0.5$, so \\boxed{0.5}", "\\boxed{1/2}"],
        wrong=["\\boxed{2}", "I give up", ""],
    ),
    "mbpp": _CODE,
    "mbpp-fast": _CODE,
    "no-robots": Shape(no_robots(1, 48), no_robots(100, 6)),
    "teacher-data": Shape(teacher(1, 48), teacher(100, 6)),
    "prompt-distillation": Shape(teacher(1, 48), teacher(100, 6)),
    "preference": Shape(pairs(1, 48)),
    # These two make their own data: a generator of reasoning-gym.
    "arithmetic": Shape([]),
    "distillation": Shape([]),
}
