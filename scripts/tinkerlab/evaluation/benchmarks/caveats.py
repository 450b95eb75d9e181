"""What must be known before a benchmark's score is believed; read in tinker-cookbook 0.5.8.

Tests hold each of these that can be shown against the installed package's code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

# A reference answer that so many items share says nothing any more.
FEW_ITEMS = 8

OF_BENCHMARK = {
    "arena_hard": "the score is the share of replies that the judge gives 7 of 10 or more, not a"
    " win rate against another model",
    "bfcl": "functions and call format stand in the prompt; the renderer's own tool calls are not"
    " asked for",
    "ceval": "the validation split; answers of the test split are not public",
    "gpqa": "the choices are not shuffled: with the dataset's own columns the right one is always"
    " A, so a model with a liking for A scores high; inspect_evals/gpqa_diamond (run_inspect_evals.py) shuffles them",
    "gsm8k": "where a reply marks no answer, its last number counts",
    "ifeval": "milder than the published one: 'less than' constraints and repeat_prompt always count"
    " as met, two_responses nearly so",
}

# The answer that a checker takes without its package, which it does not say itself.
_WITHOUT = {
    "langdetect": "without the package langdetect, constraints on the reply's language count as"
    " met: pip install langdetect",
}


def of_benchmark(name: str, module: ModuleType, missing: Mapping[str, bool]) -> list[str]:
    """What is known of a benchmark as it is installed here."""
    told = [OF_BENCHMARK[name]] if name in OF_BENCHMARK else []
    for package, fails in missing.items():
        if not fails:
            told.append(_WITHOUT.get(package, f"graded in another way without package {package}"))
    equal = getattr(module, "_check_math_equal", None)
    if equal is not None and not equal(r"\frac{1}{2}", "0.5"):
        told.append(
            "an answer of equal value in another form counts as wrong here: sympy reads LaTeX with"
            " antlr4-python3-runtime 4.11 only, and math-verify brings another version"
        )
    return told


def of_answers(answers: Sequence[str]) -> list[str]:
    """What the reference answers of a benchmark's items show."""
    known = [answer for answer in answers if answer]
    if len(known) >= FEW_ITEMS and len(set(known)) == 1:
        return [
            f"all {len(known)} items have the same answer, {known[0]!r}: a model that always says"
            " so scores 1"
        ]
    return []
