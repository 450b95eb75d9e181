"""Graders that need no process of their own: exact, numeric, contains.

Each takes time linear in the completion and runs no code but this. A reference answer may be a
list: any member counts. Correct scores 1, everything else 0.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from tinkerlab.grading import texts
from tinkerlab.grading.types import Attempt, Grade

# Where either side is no whole number, rounding is not held against the model.
RELATIVE_TOLERANCE = 1e-6


class RuleGrader:
    """Base of the graders in this file: one pure decision per attempt."""

    needs_answer = True

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def grade(self, attempts: Sequence[Attempt]) -> list[Grade]:
        return [self._grade(attempt) for attempt in attempts]

    def refuses(self, answer: Any, row: Any) -> str | None:
        """Why no completion of this row could be graded; None if it can."""
        if any(not isinstance(value, str | int | float) for value in alternatives(answer)):
            return f"the answer must be text or a number, or a list of these, for {self.name}"
        return None

    def close(self) -> None:
        pass

    def _grade(self, attempt: Attempt) -> Grade:
        raise NotImplementedError


class Exact(RuleGrader):
    """The marked answer, or else the whole completion, is the reference answer.

    Compared as Unicode NFC without the white space around; case counts.
    """

    def _grade(self, attempt: Attempt) -> Grade:
        completion = texts.tail(attempt.completion)
        given = [completion]
        marked = texts.marked_answer(completion)
        if marked is not None:
            given.append(marked)
        wanted = {_plain(str(answer)) for answer in alternatives(attempt.answer)}
        correct = any(_plain(text) in wanted for text in given)
        return Grade(float(correct), correct, extracted=_plain(given[-1]) or None)


class Numeric(RuleGrader):
    """The number that the completion gives as its answer equals the reference answer.

    See ``texts.final_number`` for which number that is. Whole numbers must be equal; where
    either is not whole, a relative difference of ``tolerance`` is allowed.
    """

    def __init__(self, name: str, tolerance: float = RELATIVE_TOLERANCE) -> None:
        super().__init__(name)
        self.tolerance = Fraction(tolerance)

    def refuses(self, answer: Any, row: Any) -> str | None:
        for value in alternatives(answer):
            if isinstance(value, bool) or _reference(value) is None:
                return f"the answer {str(value)[:40]!r} is not one number, which {self.name} needs"
        return None

    def _grade(self, attempt: Attempt) -> Grade:
        found = texts.final_number(attempt.completion)
        if found is None:
            return Grade(0.0, False)
        correct = any(
            self._equal(found.value, number.value)
            for number in map(_reference, alternatives(attempt.answer))
            if number is not None
        )
        return Grade(float(correct), correct, extracted=found.text)

    def _equal(self, found: Fraction, wanted: Fraction) -> bool:
        if found == wanted:
            return True
        if found.denominator == 1 and wanted.denominator == 1:
            return False
        return abs(found - wanted) <= self.tolerance * abs(wanted)


class Contains(RuleGrader):
    """The reference answer stands in the completion, as whole words; case does not count."""

    def refuses(self, answer: Any, row: Any) -> str | None:
        if any(not _folded(str(value)) for value in alternatives(answer)):
            return "the answer is empty, which every completion contains"
        return super().refuses(answer, row)

    def _grade(self, attempt: Attempt) -> Grade:
        completion = _folded(attempt.completion)
        for answer in alternatives(attempt.answer):
            wanted = _folded(str(answer))
            if wanted and _whole(wanted).search(completion):
                return Grade(1.0, True, extracted=str(answer))
        return Grade(0.0, False)


def alternatives(answer: Any) -> list[Any]:
    """The accepted answers of a row: the members of a list, or the one value."""
    return list(answer) if isinstance(answer, list | tuple) else [answer]


def _reference(answer: Any) -> texts.Number | None:
    """The number of a reference answer, which may carry working, as GSM8K's do ("... #### 42")."""
    text = str(answer)
    marked = texts.marked_answer(text)
    return texts.number_of(text if marked is None else marked)


def _plain(text: str) -> str:
    return unicodedata.normalize("NFC", text).strip()


def _folded(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def _whole(wanted: str) -> re.Pattern[str]:
    """``wanted`` not inside a longer word or number: "5" is neither in "15" nor in "1.5", "-5"."""
    before = after = ""
    if re.match(r"\w", wanted[0]):
        before = r"(?<!\w)" + (r"(?<!\d[.,])(?<![-\u2212])" if wanted[0].isdigit() else "")
    if re.match(r"\w", wanted[-1]):
        after = r"(?!\w)" + (r"(?![.,]\d)" if wanted[-1].isdigit() else "")
    return re.compile(before + re.escape(wanted) + after)
