"""From a tool's arguments to the trainer's config file, and the reward code that goes with it."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tinkerlab.errors import InputError
from tinkerlab.mcp.errors import Refusal
from tinkerlab.mcp.sessions import Session

REWARD_FILE = "reward.py"
REWARD_FUNCTION = "score"
MAX_CODE = 100_000


def write(session: Session, settings: dict[str, Any]) -> None:
    """Write the session's config.yaml, which also works without this server."""
    common = {
        "base_model": session.base_model,
        "run_name": session.id,
        "log_path": str(session.run),
        "num_steps": session.total_steps,
        "lr_schedule": "constant",
    }
    text = yaml.safe_dump({**common, **settings}, sort_keys=False, allow_unicode=True)
    session.config.write_text(text, encoding="utf-8")


def write_reward(folder: Path, code: str) -> str:
    """Save the reward's code after a look at its form; the spec that graders know it by.

    Raises:
        Refusal: it is no Python, or has no function ``score(completion, ...)``.
    """
    if len(code) > MAX_CODE:
        raise Refusal(
            "reward_refused",
            f"the reward code has {len(code):,} characters, more than {MAX_CODE:,}",
            "keep data out of the code",
        )
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Refusal(
            "reward_refused", f"the reward code is not Python: {error}", "mend it and call again"
        ) from None
    found = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == REWARD_FUNCTION
    ]
    if not found or not found[0].args.args:
        raise Refusal(
            "reward_refused",
            f"the reward code defines no function {REWARD_FUNCTION}(completion, answer)",
            f"define `def {REWARD_FUNCTION}(completion, answer): return 1.0 if ... else 0.0`",
        )
    file = folder / REWARD_FILE
    file.write_text(code, encoding="utf-8")
    return f"{file}:{REWARD_FUNCTION}"


def try_reward(spec: str, examples: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Grade the examples in the process that training will use.

    Args:
        examples: ``{"completion", "answer", "expected"}``, ``expected`` being the score.

    Returns:
        Each example with what it got.

    Raises:
        Refusal: the code can't be loaded, fails on an example, or gives another score.
    """
    for row in examples:
        expected = row.get("expected", 0.0)
        if isinstance(expected, bool) or not isinstance(expected, int | float):
            raise Refusal(
                "bad_input",
                f"reward_examples: expected is {expected!r}, not a number",
                "give the score that the reward must have, or leave expected out",
            )
    from tinkerlab.grading import load_grader
    from tinkerlab.grading.types import Attempt

    try:
        grader = load_grader(spec)
    except InputError as error:
        raise Refusal("reward_refused", str(error), "mend the code and call again") from None
    try:
        grades = grader.grade(
            [
                Attempt(str(row.get("completion", "")), (), row.get("answer"), row)
                for row in examples
            ]
        )
    finally:
        grader.close()
    protocol = [
        {**row, "got": grade.score, "error": grade.error}
        for row, grade in zip(examples, grades, strict=True)
    ]
    for row in protocol:
        wrong = row["error"] or (
            "expected" in row and not math.isclose(row["got"], float(row["expected"]), abs_tol=1e-6)
        )
        if wrong:
            what = row["error"] or f"scored {row['got']:g}, expected {float(row['expected']):g}"
            raise Refusal(
                "reward_refused",
                f"on completion {str(row.get('completion'))[:80]!r}: {what}",
                "mend the code, or the expectation, and call again",
            )
    return protocol
