"""The folder where made models are kept, and the only safe way to put one there.

A model is built in a temporary sibling folder and renamed into place, so that a folder with
the final name is always whole: a killed or failed build leaves nothing that could be taken
for a model. A lock makes a second process wait for the first instead of building it twice.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tinkerlab.errors import InputError

CACHE_VARIABLE = "TINKER_REHEARSAL_CACHE"


def cache_root() -> Path:
    """Return ``$TINKER_REHEARSAL_CACHE`` or ``~/.cache/tinker-rehearsal`` (it may not exist)."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "tinker-rehearsal"


def cached_folder(key: str, build: Callable[[Path], None]) -> Path:
    """Return the cached folder ``key``, building it first if it isn't there.

    Args:
        key: a file name; whatever changes the content must be part of it.
        build: fills the empty folder that it is given; its exception leaves the cache as it was.

    Raises:
        InputError: the cache folder can't be written.
    """
    root = cache_root()
    final = root / key
    if final.is_dir():
        return final
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _exclusive(root / f"{key}.lock"):
            if final.is_dir():  # another process built it while we waited
                return final
            for leftover in root.glob(f"{key}.partial-*"):  # of a killed build: we hold its lock
                shutil.rmtree(leftover, ignore_errors=True)
            partial = Path(tempfile.mkdtemp(prefix=f"{key}.partial-", dir=root))
            try:
                build(partial)
                _settle(partial)
                partial.rename(final)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
    except OSError as error:
        raise InputError(
            f"can't write the model cache {root}: {error}; free space there or set "
            f"{CACHE_VARIABLE} to another folder"
        ) from error
    return final


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on ``path``; the kernel drops it when this process dies."""
    try:
        import fcntl
    except ImportError:  # no POSIX locks: two builds may run at once, and the later one fails
        yield
        return
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _settle(folder: Path) -> None:
    """Open ``folder`` to readers and force its files to disk, lest a power cut lose only them."""
    folder.chmod(0o755)  # mkdtemp's 0700 and safetensors' 0600 would hide a shared cache
    for file in folder.iterdir():
        file.chmod(0o644)
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
