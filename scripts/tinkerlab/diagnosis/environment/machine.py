"""Address, environment variables, disk and limits of the machine that runs the loop."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from tinkerlab.diagnosis.findings import Finding

FEW_BYTES = 1_000_000_000  # a long run's logs and samples; below a fifth of it nothing fits
FEW_FILES = 1024  # one connection pool of the SDK alone may open some hundred sockets
FEW_WATCHES = 8192  # the kernel's old default, which editors and log watchers use up
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def address_findings(url: str) -> Iterator[Finding]:
    """What is wrong with ``TINKER_BASE_URL`` as it is written."""
    fault = None
    try:
        parts = urlsplit(url.strip())
        _ = parts.port
    except ValueError:  # half an IPv6 address, a port beyond 65535
        parts, fault = urlsplit(""), "is no http(s) address"
    if url != url.strip() or url[:1] in "'\"":
        fault = "has spaces or quotes around it"
    elif parts.scheme not in ("http", "https") or not parts.hostname:
        fault = "is no http(s) address"
    elif parts.path.rstrip("/").endswith("/api/v1"):
        fault = "ends with /api/v1, which the SDK adds itself"
    if fault:
        yield Finding(
            "base-url",
            f"TINKER_BASE_URL {fault}",
            where=without_password(url),
            fix="unset it for the hosted service, or write scheme://host[:port] only",
        )
    elif parts.scheme == "http" and parts.hostname not in LOOPBACK:
        yield Finding(
            "base-url-unencrypted",
            "the key and the data go to this address unencrypted",
            where=without_password(url),
            fix="use https",
            severity="warning",
        )


def without_password(url: str) -> str:
    """The address without what stands before an @: a name and a password."""
    return re.sub(r"//[^/@]*@", "//***@", url)


def variable_findings(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Settings in the environment that do not do what they look like."""
    if environment.get("TINKER_SUBPROCESS_SAMPLING"):
        yield Finding(
            "setting-without-effect",
            "TINKER_SUBPROCESS_SAMPLING does nothing since tinker 0.34",
            where="TINKER_SUBPROCESS_SAMPLING",
            fix="unset it; to sample outside the main process, pickle the sampling client into a"
            " worker process",
            severity="warning",
        )


def variable_notes(environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Settings that explain a difference between two machines."""
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "HTTP_PROXY"):
        if environment.get(name):
            host = re.split(r"[/?]", re.sub(r"^\w+://", "", environment[name]))[0].split("@")[-1]
            yield f"{name} is set: requests go through {host}"
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if environment.get(name, "0").lower() not in ("", "0", "false"):
            yield f"{name} is set: tokenizers must be in the cache"


def has_hub_token(environment: Mapping[str, str] = os.environ, home: Path | None = None) -> bool:
    """Whether a Hugging Face token is set or stored; its value is not looked at."""
    if environment.get("HF_TOKEN") or environment.get("HUGGING_FACE_HUB_TOKEN"):
        return True
    base = environment.get("HF_HOME")
    folder = Path(base) if base else (home or Path("~").expanduser()) / ".cache" / "huggingface"
    return (folder / "token").is_file()


def gated_findings(model: str, token: bool) -> Iterator[Finding]:
    """A tokenizer that the hub gives only to accounts that accepted its licence.

    The cookbook takes Llama 3 tokenizers from an open copy
    (``tinker_cookbook/tokenizer_utils.py``), so only other models of that organisation need it.
    """
    gated = model.startswith("meta-llama/") and not model.startswith("meta-llama/Llama-3")
    if gated and not token:
        yield Finding(
            "hub-token-missing",
            f"the tokenizer of {model} is gated and there is no Hugging Face token",
            where="HF_TOKEN",
            fix="accept the licence on the model's page and set HF_TOKEN",
        )


def disk_findings(log_path: Path) -> Iterator[Finding]:
    """Whether logs can be written and watched below ``log_path``."""
    nearest = next(f for f in (log_path, *log_path.absolute().parents) if f.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        yield Finding(
            "log-path-not-writable",
            "the log path can't be written",
            where=str(nearest),
            fix="another log_path, or mend its permissions",
        )
        return
    free = shutil.disk_usage(nearest).free
    if free < FEW_BYTES:
        yield Finding(
            "disk-nearly-full",
            f"{free / 1e6:,.0f} MB are free on the log path's disk",
            where=str(nearest),
            evidence=("a full disk leaves half a line in metrics.jsonl and loses checkpoints",),
            fix="make room, or put log_path on another disk",
            severity="problem" if free < FEW_BYTES / 5 else "warning",
        )


def limit_findings(proc: Path = Path("/proc")) -> Iterator[Finding]:
    """Limits of the operating system that a long run meets."""
    try:
        import resource

        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    except ImportError:  # not on Windows
        return
    if files < FEW_FILES:
        yield Finding(
            "few-open-files",
            f"only {files} files and sockets may be open at once",
            where="ulimit -n",
            fix="ulimit -n 65536",
            severity="warning",
        )
    watches = _number(proc / "sys/fs/inotify/max_user_watches")
    instances = _number(proc / "sys/fs/inotify/max_user_instances")
    if (watches is not None and watches < FEW_WATCHES) or (
        instances is not None and instances < 64
    ):
        yield Finding(
            "few-inotify-watches",
            f"inotify allows {watches} watches and {instances} instances: tools that follow the"
            " log fail with 'inotify limit reached'",
            where=str(proc / "sys/fs/inotify"),
            fix="sysctl fs.inotify.max_user_watches=524288 fs.inotify.max_user_instances=512",
            severity="warning",
        )


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
