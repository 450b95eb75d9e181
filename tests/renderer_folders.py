"""Tokenizer folders and renderers that are wrong in one way each, for the renderer checks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TINY = "tiny:llama"


def tokenizer_copy(target: Path, *, whole_model: bool = False) -> Path:
    """The tiny model's tokenizer files, to be doctored; with config.json if ``whole_model``."""
    from tinkerlab.data.tokenizers import model_folder

    source = model_folder(TINY)
    assert source is not None
    target.mkdir()
    for path in source.iterdir():
        if path.suffix == ".safetensors" or (path.name == "config.json" and not whole_model):
            continue
        shutil.copy(path, target / path.name)
    return target


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def other_end_token(folder: Path) -> Path:
    """As the files of a base model: eos is the end of a document."""
    edit(folder / "tokenizer_config.json", lambda it: it.update(eos_token="<|endoftext|>"))
    return folder


def template_with(folder: Path, old: str, new: str) -> Path:
    path = folder / "chat_template.jinja"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return folder


def without_spaces(folder: Path) -> Path:
    """Splits at whitespace and forgets it, as a tokenizer loaded as the wrong class does."""

    def change(it: dict[str, Any]) -> None:
        it["pre_tokenizer"] = {
            "type": "Sequence",
            "pretokenizers": [{"type": "WhitespaceSplit"}, it["pre_tokenizer"]],
        }

    edit(folder / "tokenizer.json", change)
    return folder


def shifted_markers(folder: Path) -> Path:
    """tokenizer_config.json says other ids than the vocabulary has."""

    def change(it: dict[str, Any]) -> None:
        names = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
        it["added_tokens_decoder"] = {
            str(257 + i): {"content": name, "special": True} for i, name in enumerate(names)
        }

    edit(folder / "tokenizer_config.json", change)
    return folder


def small_vocabulary(folder: Path) -> Path:
    edit(folder / "config.json", lambda it: it.update(vocab_size=250))
    return folder


@contextmanager
def broken_renderer(kind: str) -> Iterator[str]:
    """Registers a renderer of the user's own with one fault; its name."""
    import tinker
    import torch
    from tinker_cookbook.renderers import get_text_content, register_renderer, unregister_renderer
    from tinker_cookbook.renderers.qwen3 import Qwen3InstructRenderer

    class Broken(Qwen3InstructRenderer):
        def build_generation_prompt(self, messages, role="assistant", prefill=None):
            prompt = super().build_generation_prompt(messages, role, prefill)
            if kind == "prefix":
                more = self.tokenizer.encode("<think>\n", add_special_tokens=False)
                return tinker.ModelInput.from_ints([*prompt.to_ints(), *more])
            return prompt

        def build_supervised_example(self, messages, **options):
            bare: Any = messages
            if kind == "drops":
                bare = [{**m, "content": get_text_content(m)} for m in messages]
            example, weights = super().build_supervised_example(bare, **options)
            trained = torch.nonzero(weights > 0).flatten()
            if kind == "end":
                weights[trained[-1]] = 0
            if kind == "header":
                weights[: trained[0]] = 1
            if kind == "answer":
                weights[trained[0]] = 0
            return example, weights

        def parse_response(self, response):
            message, ending = super().parse_response(response)
            if kind == "parser":
                message["content"] = "parsed"
            return message, ending

    name = f"user/{kind}"
    register_renderer(name, lambda tokenizer, processor=None: Broken(tokenizer))
    try:
        yield name
    finally:
        unregister_renderer(name)
