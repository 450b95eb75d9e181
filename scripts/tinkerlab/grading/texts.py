"""Find the answer that a completion states: marked answers, numbers, code and JSON blocks.

A completion may name many values; which of them is its answer is decided in one place, here.
Everything runs in time linear in the text, and only on its last ``MAX_CHARS`` characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

MAX_CHARS = 100_000  # far over any completion; an answer stands at the end
MAX_DIGITS = 400  # a longer number is noise, and arithmetic on it would take for ever
MAX_EXPONENT = 400

# What matters for pairing braces; an escaped one belongs to a set or a text.
_BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_HASHES = re.compile(r"^[ \t]*####[ \t]*(\S.*)$", re.MULTILINE)
# "The answer is 42", "Final answer: **42**", "answer = 42"; the answer ends with the sentence.
_SAID = re.compile(
    r"(?<![a-z])answer(?![a-z])[ \t*_]*(?:\bis\b|\bwas\b|[:=])[ \t*_:]*\s*([^\n]+)", re.IGNORECASE
)
_SENTENCE_END = re.compile(r"[.!?;](?=\s|$)")
_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[^\n]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
_OPEN_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[^\n]*\n(.*)\Z", re.DOTALL | re.MULTILINE)

# Look-alikes of ASCII characters that models and web text use in numbers.
_LOOK_ALIKES = {
    **dict(zip(range(0xFF10, 0xFF1A), "0123456789", strict=True)),  # full width
    **dict.fromkeys(map(ord, "\u2212\ufe63\uff0d"), "-"),  # minus signs
    **dict.fromkeys(map(ord, "\u00a0\u2007\u202f"), "\u2009"),  # spaces inside numbers
    ord("\uff0b"): "+", ord("\uff0e"): ".", ord("\uff0c"): ",", ord("\u2044"): "/",
    **{ord(c): f" {n}/{d}" for c, n, d in (
        ("½", 1, 2), ("⅓", 1, 3), ("⅔", 2, 3), ("¼", 1, 4), ("¾", 3, 4), ("⅕", 1, 5),
        ("⅖", 2, 5), ("⅗", 3, 5), ("⅘", 4, 5), ("⅙", 1, 6), ("⅛", 1, 8), ("⅜", 3, 8),
        ("⅝", 5, 8), ("⅞", 7, 8),
    )},
}  # fmt: skip
_LATEX_NUMBERS = (
    (re.compile(r"\\[dt]?frac\s*\{\s*([-+]?\d+)\s*\}\s*\{\s*(\d+)\s*\}"), r" \1/\2 "),
    (re.compile(r"\\[dt]?frac\s*(\d)\s*(\d)"), r" \1/\2 "),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\[,!: ]"), "\u2009"),
    (re.compile(r"\\(?:times|cdot)\b|×|·"), "*"),
)
_NUMBER = re.compile(
    r"""
    (?: (?<![\w)\].]) (?P<sign>[-+]) [ ]? )?   # "5-3" holds 5 and 3, not -3
    (?: \$ [ ]? )?
    (?<![\d.])
    (?P<number>
        (?: \d{1,3}(?:,\d{3})+(?!\d) | \d{1,3}(?:\u2009\d{3})+(?!\d) | \d+ ) (?:\.\d+)?
        | \.\d+
    )
    (?: [eE](?P<exp>[-+]?\d+)\b | [ ]?\*[ ]?10[ ]?(?:\^|\*\*)[ ]?\{?(?P<power>[-+]?\d+)\}?
        | [ ]?(?:\^|\*\*)[ ]?\{?(?P<raised>[-+]?\d+)\}? )?
    (?: [ ]? / [ ]? (?P<under>\d+)(?![\d/]) | [ ](?P<top>\d+)/(?P<bottom>\d+)(?![\d/]) )?
    """,
    re.VERBOSE | re.ASCII,
)


@dataclass(frozen=True)
class Number:
    """A number in a text.

    Attributes:
        text: as it was written, cleaned of look-alikes.
        value: its exact value.
    """

    text: str
    value: Fraction


def tail(text: str) -> str:
    """The part of a completion that is looked at."""
    return text[-MAX_CHARS:]


def marked_answer(text: str) -> str | None:
    r"""The answer that the completion marks as such; None if it marks none.

    In this order, and of several of a kind the last: ``<answer>...</answer>``, ``\boxed{...}``,
    a line ``#### ...`` (as in GSM8K), "answer is ..." or "answer: ..." up to the end of its
    sentence.
    """
    text = tail(text)
    tagged = _last_tagged(text)
    if tagged is not None:
        return tagged.strip()
    box = last_boxed(text)
    if box is not None:
        return box.strip()
    hashes = _HASHES.findall(text)
    if hashes:
        return hashes[-1].strip()
    said = _SAID.findall(text)
    if said:
        sentence = _SENTENCE_END.split(said[-1], maxsplit=1)[0]
        return sentence.strip(" \t*_`\"'") or None
    return None


def _last_tagged(text: str) -> str | None:
    folded = text.lower()
    end = folded.rfind("</answer>") if len(folded) == len(text) else text.rfind("</answer>")
    start = folded.rfind("<answer>", 0, end) if end >= 0 else -1
    return text[start + len("<answer>") : end] if start >= 0 else None


def last_boxed(text: str) -> str | None:
    r"""What stands in the last complete ``\boxed{...}``, whose braces may be nested."""
    opened: list[int | None] = []  # where each open brace's content starts, for boxes
    start, end = -1, -1
    for match in _BRACES.finditer(text):
        found = match.group()
        if found == "}":
            inner = opened.pop() if opened else None
            if inner is not None and inner > start:
                start, end = inner, match.start()
        elif found[-1] == "{" and found != r"\{":
            opened.append(match.end() if found != "{" else None)
    return text[start:end] if start >= 0 else None


def numbers(text: str) -> Iterator[Number]:
    r"""Every number in ``text``, in order.

    Read are: thousands separators (``1,234``, ``1 234`` with a
    no-break or thin space), decimals, ``1.5e3``, ``1.5 * 10^3``,
    ``2^10``, fractions (``3/4``, ``1 3/4``, ``\frac{3}{4}``, ``¾``), Unicode minus signs and full-width
    digits. A currency or percent sign and a unit are left out: ``50%`` is 50.
    """
    for match in _number_matches(text):
        number = _number(match)
        if number is not None:
            yield number


def number_of(text: str) -> Number | None:
    """The number that a reference answer is; None if it is none, or more than one."""
    found = list(numbers(text))
    return found[0] if len(found) == 1 else None


def final_number(text: str) -> Number | None:
    """The number that a completion gives as its answer.

    In a marked answer, the first one after its last equals sign ("answer is 6 * 7 = 42 cm");
    without a mark, or without a number in it, the last one of the text.
    """
    marked = marked_answer(text)
    if marked is not None:
        for part in (marked.rsplit("=", 1)[-1], marked):
            found = next(numbers(part), None)
            if found is not None:
                return found
    found = map(_number, reversed(_number_matches(text)))
    return next((number for number in found if number is not None), None)


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """(language, content) of each fenced block; one that was cut off by the end counts too."""
    blocks = []
    end = 0
    for match in _FENCE.finditer(text):
        blocks.append((match[1].lower(), match[2]))
        end = match.end()
    cut = _OPEN_FENCE.search(text, end)
    if cut:
        blocks.append((cut[1].lower(), cut[2]))
    return blocks


def _number_matches(text: str) -> list[re.Match[str]]:
    text = tail(text).translate(_LOOK_ALIKES)
    for pattern, replacement in _LATEX_NUMBERS:
        text = pattern.sub(replacement, text)
    return list(_NUMBER.finditer(text))


def _number(match: re.Match[str]) -> Number | None:
    """None for a number over the limits, and for a division by zero."""
    written = match["number"].replace(",", "").replace("\u2009", "")
    exponent = match["exp"] or match["power"] or match["raised"] or "0"
    parts = [match["under"] or "1", match["top"] or "0", match["bottom"] or "1"]
    if max(map(len, (written, *parts))) > MAX_DIGITS or len(exponent) > len("-400"):
        return None
    under, top, bottom = map(int, parts)
    if abs(int(exponent)) > MAX_EXPONENT or not under or not bottom:
        return None
    value = Fraction(written)
    if match["raised"] is None:
        value *= Fraction(10) ** int(exponent)
    elif len(written) * abs(int(exponent)) > MAX_DIGITS or (not value and int(exponent) < 0):
        return None
    else:
        value **= int(exponent)
    value = value / under + Fraction(top, bottom)
    text = " ".join(match.group().replace("$", "").split())
    return Number(text, -value if match["sign"] == "-" else value)
