"""Is the tokenizer whole, and are the renderer's markers tokens of it?"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tinkerlab.diagnosis.findings import Finding

# Text that every tokenizer of a chat model can write and read back: spaces, line ends,
# indentation, accents, digits and code.
PROBES = (
    "The answer is 42.",
    "a  b\n\n    def f(x):\n\treturn x + 1\n",
    "caf\u00e9 \u4f60\u597d \U0001f600",
    "1234567890 3.14",
)
_MARKER = re.compile(r"<[|\uff5c][^<>|\uff5c\s]{1,40}[|\uff5c]>")


def check_tokenizer(tokenizer: Any, folder: Path | None, vocab_size: int | None) -> list[Finding]:
    """Findings about the tokenizer alone.

    Args:
        folder: where it was loaded from, if that is local.
        vocab_size: embedding rows of the model, if known.
    """
    return [
        *_drops_text(tokenizer),
        *_shifted(tokenizer, folder),
        *_out_of_range(tokenizer, vocab_size),
    ]


def split_markers(text: str, tokenizer: Any) -> dict[str, int]:
    """Chat markers in ``text`` that are not one token each, with the number of their tokens."""
    found = {}
    for marker in dict.fromkeys(_MARKER.findall(text)):
        pieces = tokenizer.encode(marker, add_special_tokens=False)
        if len(pieces) != 1:
            found[marker] = len(pieces)
    return found


def _drops_text(tokenizer: Any) -> Iterator[Finding]:
    lost = []
    for text in PROBES:
        back = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False))
        if back != text:
            lost.append(f"{text!r} comes back as {back!r}")
    if lost:
        yield Finding(
            "tokenizer-drops-text",
            f"the tokenizer ({type(tokenizer).__name__}) does not give back the text it was given",
            "tokenizer",
            tuple(lost),
            'the class is wrong for these files: set "tokenizer_class": '
            '"PreTrainedTokenizerFast" in tokenizer_config.json (known for DeepSeek-V3 files under '
            "transformers 5), or load another revision",
        )


def _shifted(tokenizer: Any, folder: Path | None) -> Iterator[Finding]:
    evidence = []
    for source, table in _written_ids(folder):
        for text, number in table.items():
            loaded = tokenizer.convert_tokens_to_ids(text)
            if loaded != number:
                evidence.append(f"{text}: {number} in {source}, {loaded} as loaded")
    if evidence:
        yield Finding(
            "special-token-ids-shifted",
            f"{len(evidence)} special tokens have other ids than the model's files say",
            "tokenizer",
            tuple(evidence[:8]),
            "the model was trained with the ids in its files: use the tokenizer files of the "
            "model's own revision and the transformers version that they were written with "
            "(shifts are known from transformers 5.4 on)",
        )


def _written_ids(folder: Path | None) -> Iterator[tuple[str, dict[str, int]]]:
    """Ids of added tokens as tokenizer.json and tokenizer_config.json write them."""
    if folder is None:
        return
    core = _json(folder / "tokenizer.json").get("added_tokens")
    if isinstance(core, list):
        yield "tokenizer.json", {row["content"]: row["id"] for row in core if "content" in row}
    config = _json(folder / "tokenizer_config.json").get("added_tokens_decoder")
    if isinstance(config, dict):
        table = {row["content"]: int(key) for key, row in config.items() if "content" in row}
        yield "tokenizer_config.json", table


def _json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _out_of_range(tokenizer: Any, vocab_size: int | None) -> Iterator[Finding]:
    if not vocab_size:
        return
    added = getattr(tokenizer, "added_tokens_decoder", None) or {}
    beyond = [f"{token} has id {number}" for number, token in added.items() if number >= vocab_size]
    top = max(tokenizer.get_vocab().values())
    if top < vocab_size:
        return
    yield Finding(
        "token-id-out-of-range",
        f"the tokenizer has ids up to {top}, the model {vocab_size} embedding rows (ids up to "
        f"{vocab_size - 1})",
        "tokenizer",
        tuple(beyond[:8]),
        "use the tokenizer of this very model; an id beyond the embedding is refused by the "
        "service, or reads foreign memory in an engine",
    )
