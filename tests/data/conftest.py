"""Data files, and tokenizers that are made in a moment instead of downloaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tinkerlab.rehearsal.models.tokenizers import (
    CHATML_TEMPLATE,
    END_OF_TEXT,
    IM_END,
    IM_START,
    byte_symbols,
    save_byte_bpe,
)

# As SmolLM2's template does: a system message of its own where the conversation has none.
DEFAULT_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}"
    "{% endif %}"
)
OTHER_TEMPLATE = "{% for m in messages %}{{ '#' + m['role'] + '#' + m['content'] }}{% endfor %}"


@pytest.fixture
def write_rows(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes a JSONL file: a string line as it is, anything else as JSON."""

    def write(*rows: Any, name: str = "data.jsonl") -> Path:
        path = tmp_path / name
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def make_tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function from a chat template to a folder with a byte tokenizer that has it."""

    def make(template: str) -> Path:
        folder = tmp_path_factory.mktemp("tokenizer")
        save_byte_bpe(
            folder,
            vocabulary=[*byte_symbols(), END_OF_TEXT, IM_START, IM_END],
            merges=[],
            special_tokens=[END_OF_TEXT, IM_START, IM_END],
            split_digits=False,
            chat_template=template,
            context_length=512,
            bos_token=None,
            eos_token=IM_END,
            pad_token=END_OF_TEXT,
        )
        return folder

    return make


@pytest.fixture(scope="session")
def chatml_folder(make_tokenizer_folder: Callable[[str], Path]) -> Path:
    return make_tokenizer_folder(CHATML_TEMPLATE)


@pytest.fixture(scope="session")
def chatml(chatml_folder: Path) -> Any:
    """A byte tokenizer with the ChatML template: every ASCII character is one token."""
    from tinkerlab.data import load_tokenizer

    return load_tokenizer(str(chatml_folder))


@pytest.fixture(scope="session")
def default_system(make_tokenizer_folder: Callable[[str], Path]) -> Any:
    from tinkerlab.data import load_tokenizer

    return load_tokenizer(str(make_tokenizer_folder(DEFAULT_SYSTEM + CHATML_TEMPLATE)))


@pytest.fixture(scope="session")
def other_template(make_tokenizer_folder: Callable[[str], Path]) -> Any:
    """A tokenizer whose template no cookbook renderer writes."""
    from tinkerlab.data import load_tokenizer

    return load_tokenizer(str(make_tokenizer_folder(OTHER_TEMPLATE)))
