"""A reward with which almost any model's samples of one prompt differ. It teaches nothing.

Whether answers are right would leave most groups without signal: a small base model is always
wrong, a tuned one always right, and a reasoning model is cut while it thinks. This asks whether
the machinery of a GRPO step works, so it rewards what varies.
"""

from __future__ import annotations


def lower_case_share(completion: str) -> float:
    """Share of the characters that are lower-case letters a to z; 0 for an empty completion."""
    return sum("a" <= letter <= "z" for letter in completion) / max(len(completion), 1)
