"""The tensors of a Hugging Face model folder, read one at a time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkerlab.errors import InputError
from tinkerlab.rehearsal.models.folders import read_config, weight_files

if TYPE_CHECKING:
    from torch import Tensor

HEAD = "lm_head.weight"
_LAYER = re.compile(r"\.layers\.(\d+)\.")


@dataclass(frozen=True)
class Checkpoint:
    """A model folder.

    Attributes:
        config: config.json.
        files: tensor name -> the file that holds it.
        shapes, dtypes: of each tensor, from the headers (dtypes as safetensors writes them).
    """

    directory: Path
    config: dict[str, Any]
    files: dict[str, Path]
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]

    @property
    def model_type(self) -> str:
        return self.config["model_type"]

    @property
    def tied(self) -> bool:
        """Whether the output layer is the input embedding."""
        text = self.config.get("text_config")
        inner = text.get("tie_word_embeddings") if isinstance(text, dict) else None
        return bool(self.config.get("tie_word_embeddings", inner) or inner)

    @property
    def embedding(self) -> str:
        """The name of the input embedding.

        Raises:
            InputError: none or several tensors look like it.
        """
        names = [name for name in self.shapes if name.endswith("embed_tokens.weight")]
        if len(names) != 1:
            raise InputError(f"{self.directory}: {len(names)} tensors named embed_tokens, need one")
        return names[0]

    @property
    def parameters(self) -> int:
        return sum(_elements(shape) for shape in self.shapes.values())

    def tensor(self, name: str) -> Tensor:
        """Read one tensor, as stored."""
        from safetensors import safe_open

        with safe_open(str(self.files[name]), framework="pt") as file:
            return file.get_tensor(name)


def read_checkpoint(directory: Path) -> Checkpoint:
    """Read config and tensor headers of a model folder.

    Raises:
        InputError: no config or safetensors weights; a file is broken.
    """
    from safetensors import SafetensorError, safe_open

    config = read_config(directory)
    files: dict[str, Path] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, str] = {}
    for path in weight_files(directory):
        try:
            with safe_open(str(path), framework="np") as file:
                for name in file.keys():  # noqa: SIM118 (not a mapping)
                    part = file.get_slice(name)
                    files[name], shapes[name] = path, tuple(part.get_shape())
                    dtypes[name] = part.get_dtype()
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path}: broken ({error}): build or download it again") from error
    return Checkpoint(directory, config, files, shapes, dtypes)


def layer_of(name: str) -> int | None:
    """Return the layer number in a tensor's or module's name."""
    found = _LAYER.search(name)
    return int(found.group(1)) if found else None


def _elements(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product
