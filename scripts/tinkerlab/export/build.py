"""Download a checkpoint, build the PEFT adapter and the merged model.

Each step fills a temporary folder beside its destination and renames it, so that a folder with
the final name is whole and an interrupted export goes on where it stopped.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tinkerlab.errors import CheckFailed, InputError
from tinkerlab.export.adapter import CONFIG, UNEMBEDDING, Adapter, read_adapter
from tinkerlab.export.checkpoint import Checkpoint
from tinkerlab.export.untie import untied_view

_PARTIAL = ".partial-"


def download(checkpoint: str, destination: Path) -> None:
    """Fetch the adapter of a ``tinker://`` checkpoint into ``destination``.

    Raises:
        InputError: a path that can't be downloaded; the line says which can.
        CheckFailed: the service refused or the transfer broke.
    """
    from tinker_cookbook.exceptions import WeightsDownloadError

    check_downloadable(checkpoint)
    with _into(destination) as folder:
        from tinker_cookbook import weights

        try:
            with warnings.catch_warnings():
                # tinker-cookbook 0.5.8 calls the SDK in ways that 0.38 deprecates.
                warnings.simplefilter("ignore", FutureWarning)
                weights.download(tinker_path=checkpoint, output_dir=str(folder))
        except WeightsDownloadError as error:
            raise CheckFailed(f"{checkpoint}: {_one_line(error)}") from error
        encrypted = sorted(file.name for file in folder.glob("*.age"))
        if encrypted:
            raise InputError(
                f"{checkpoint}: {encrypted[0]} is encrypted to somebody's age key: decrypt the "
                "files with `age -d` and pass the folder as --checkpoint"
            )
        read_adapter(folder)


def check_downloadable(checkpoint: str) -> None:
    """Refuse, before any work, a path that SDK 0.38 has no way to download.

    Raises:
        InputError: not a checkpoint path, or a sampler checkpoint.
    """
    import tinker

    try:
        kind = tinker.ParsedCheckpointTinkerPath.from_tinker_path(checkpoint).checkpoint_type
    except ValueError as error:
        raise InputError(
            f"{checkpoint}: not a checkpoint path: write tinker://RUN/weights/NAME, or the "
            "folder of a downloaded adapter"
        ) from error
    if kind == "sampler":
        twin = checkpoint.replace("/sampler_weights/", "/weights/")
        raise InputError(
            f"{checkpoint}: sampler checkpoints can't be downloaded since SDK 0.38 (no archive "
            f"method): give the training checkpoint saved with it, perhaps {twin}"
        )


def copy_adapter(source: Path, destination: Path) -> None:
    """Take an adapter folder that was downloaded earlier.

    Raises:
        InputError: it isn't one, or is in PEFT's form already.
    """
    adapter = read_adapter(source)
    _refuse_peft_form(adapter)
    with _into(destination) as folder:
        for file in source.iterdir():
            if file.is_file():
                shutil.copyfile(file, folder / file.name)


def _refuse_peft_form(adapter: Adapter) -> None:
    # Attention and dense MLP layers look the same in both forms; only experts tell.
    if any(re.search(r"\.experts\.\d+\.", module) for module in adapter.pairs):
        raise InputError(
            f"{adapter.directory}: its experts are in PEFT's form already: give the folder that "
            "was downloaded from the service"
        )


def build_peft(adapter: Adapter, base: Checkpoint, base_name: str, destination: Path) -> None:
    """Convert ``adapter`` to PEFT's form; ``base_name`` goes into its config.

    Raises:
        CheckFailed: tinker-cookbook refuses this model family (DeepSeek V3) or adapter.
    """

    def build(model: str, folder: str) -> None:
        from tinker_cookbook import weights

        weights.build_lora_adapter(
            base_model=model, adapter_path=str(adapter.directory), output_path=folder
        )

    def finish(folder: Path) -> None:
        path = folder / CONFIG
        config = json.loads(path.read_text(encoding="utf-8"))
        config["base_model_name_or_path"] = base_name  # not our temporary folder
        path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    _build(build, adapter, base, destination, finish)


def build_merged(adapter: Adapter, base: Checkpoint, destination: Path) -> None:
    """Merge ``adapter`` into ``base``; every tensor keeps the type it has in ``base``.

    Raises:
        CheckFailed: tinker-cookbook can't merge this adapter into this model.
    """

    def build(model: str, folder: str) -> None:
        from tinker_cookbook import weights

        weights.build_hf_model(
            base_model=model, adapter_path=str(adapter.directory), output_path=folder
        )

    _build(build, adapter, base, destination, lambda folder: None)


def _build(
    build: Callable[[str, str], None],
    adapter: Adapter,
    base: Checkpoint,
    destination: Path,
    finish: Callable[[Path], None],
) -> None:
    from tinker_cookbook.exceptions import TinkerCookbookError

    logging.getLogger("tinker_cookbook.weights").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix=_PARTIAL, dir=destination.parent) as scratch:
        model = base.directory
        if base.tied and any(p.leaf in UNEMBEDDING for p in adapter.pairs.values()):
            model = Path(scratch) / "untied"
            model.mkdir()
            untied_view(base, model)
        with _into(destination, create=False) as folder:
            try:
                build(str(model), str(folder))
            except (TinkerCookbookError, ValueError, KeyError) as error:
                raise CheckFailed(
                    f"tinker-cookbook can't build {destination.name}: {_one_line(error)}"
                ) from error
            finish(folder)


@contextmanager
def _into(destination: Path, *, create: bool = True) -> Iterator[Path]:
    """Yield a temporary sibling of ``destination`` that takes its name if all goes well."""
    holder = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=destination.parent))
    folder = holder / destination.name
    try:
        if create:
            folder.mkdir()
        yield folder
        folder.rename(destination)
    finally:
        shutil.rmtree(holder, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Delete what a killed build left in ``folder``."""
    for leftover in folder.glob(f"{_PARTIAL}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
