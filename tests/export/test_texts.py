"""Lines of several shapes become texts; what can't is named with file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tinkerlab.errors import InputError
from tinkerlab.export.texts import read_texts, tokenize


class Bytes:
    """A tokenizer of bytes without a chat template."""

    chat_template = None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return list(text.encode())


def lines(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows))
    return path


def test_shapes(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    path = lines(
        tmp_path / "x.jsonl",
        {"text": "plain"},
        "",
        {"prompt": "2+2=", "completion": "4", "id": 7},
        {"messages": chat},
    )
    assert read_texts(path, Bytes(), at_most=9) == [
        "plain",
        "2+2=\n4",
        "user: Hi\nassistant: Hello",
    ]
    assert read_texts(path, Bytes(), at_most=1) == ["plain"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("{", "x.jsonl:2: not JSON"),
        ("[1]", "x.jsonl:2: not a JSON object"),
        ({"id": 3}, "x.jsonl:2: no text"),
        ({"messages": [{"role": "user"}]}, "x.jsonl:2: messages must have"),
    ],
)
def test_bad_lines(row, words, tmp_path: Path) -> None:
    path = lines(tmp_path / "x.jsonl", {"text": "fine"}, row)
    with pytest.raises(InputError, match=words):
        read_texts(path, Bytes(), at_most=9)


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--text"):
        read_texts(tmp_path / "none", Bytes(), at_most=9)
    with pytest.raises(InputError, match="no line holds"):
        read_texts(lines(tmp_path / "x", "", ""), Bytes(), at_most=9)
    (tmp_path / "latin").write_bytes(b'{"text": "\xe9"}')
    with pytest.raises(InputError, match="--text"):
        read_texts(tmp_path / "latin", Bytes(), at_most=9)


def test_cut_and_too_short() -> None:
    assert tokenize(["abcdef", "x", ""], Bytes(), max_tokens=3) == [[97, 98, 99]]
    with pytest.raises(InputError, match="two tokens"):
        tokenize(["x"], Bytes(), max_tokens=9)


def test_built_in_texts_differ() -> None:
    texts = read_texts(None, Bytes(), at_most=16)
    assert len(texts) == len(set(texts)) >= 8
