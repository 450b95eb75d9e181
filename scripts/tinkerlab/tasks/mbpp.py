"""MBPP's rows, in which the function's name and arguments stand only in the tests.

Columns of google-research-datasets/mbpp: ``text`` (in the sanitized part ``prompt``), ``code``,
``test_list``, ``test_setup_code`` (``test_imports``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ASK = (
    "{task}\n\nThe function must pass this test, and others like it:\n\n```python\n{test}\n```\n\n"
    "Reply with the function, imports included, in one ```python block."
)


def is_row(row: Mapping[str, Any]) -> bool:
    """Whether ``row`` is one of MBPP's; rows of a user's own with ``test_list`` have no ``code``."""
    if "code" not in row:
        return False
    tests = row.get("test_list")
    task = row.get("text", row.get("prompt"))
    return isinstance(tests, list) and bool(tests) and isinstance(task, str) and bool(task.strip())


def with_prompt(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with a prompt that names the function, as ``{"prompt", "answer", ...}``.

    Only the first test is shown: the others are for grading, so that a policy that learns to
    answer the shown test and no other earns nothing. Some tests use what the row's setup code
    defines, so that is shown as well.
    """
    rest = {k: v for k, v in row.items() if k not in ("text", "prompt", "code", "test_imports")}
    lines = [*map(str, row.get("test_imports") or []), row.get("test_setup_code") or ""]
    setup = "\n".join(lines).strip()
    shown = f"{setup}\n{row['test_list'][0]}".strip()
    return {
        **rest,
        "prompt": ASK.format(task=str(row.get("text", row.get("prompt"))).strip(), test=shown),
        "answer": row["code"],
        "test_setup_code": setup,
    }
