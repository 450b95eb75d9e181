"""Which versions are there, and which of them are known to break something."""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tinkerlab.diagnosis.environment.known_bad import (
    KNOWN_BAD,
    PACKAGES,
    PRE_RELEASES_WARNED,
    REQUIRED,
)
from tinkerlab.diagnosis.findings import Finding
from tinkerlab.errors import InputError

Versions = Mapping[str, str]

PYTHON_NEEDED = (3, 11)  # Requires-Python of tinker 0.38 and tinker-cookbook 0.5.8

UNKNOWN = "?"  # installed from a folder or a repository, which a freeze gives no version for

_FREEZE_LINE = re.compile(r"^\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:===?|\s)\s*([0-9][^\s;#]*)")
# `name @ https://.../name-1.2-py3-none-any.whl`, `name @ git+https://...`
_DIRECT = re.compile(r"^\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*@\s*(\S+)")
_WHEEL = re.compile(r"/[A-Za-z0-9_.]+-([0-9][^-/]*)-[^/]*\.whl")
_EDITABLE = re.compile(r"^\s*-e\s.*[#&]egg=([A-Za-z0-9._-]+)")
# Pairs of a JSON listing (`pip list --format json`, conda) or of a lock file (uv, poetry).
_PAIR = re.compile(
    r"\"?\bname\"?\s*[:=]\s*\"([A-Za-z0-9._-]+)\"[,\s]+\"?version\"?\s*[:=]\s*\"([0-9][^\"]*)\""
)


def installed_versions() -> dict[str, str]:
    """Versions of the packages that matter, in this Python; without importing them."""
    from importlib import metadata

    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def frozen_versions(path: Path) -> dict[str, str]:
    """Versions from a ``pip freeze`` or ``pip list`` that somebody sent.

    Raises:
        InputError: no such file, no text, or no line that names a version.
    """
    try:
        raw = path.read_bytes()
        utf16 = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))  # PowerShell's >
        text = raw.decode("utf-16" if utf16 else "utf-8-sig")
    except OSError as error:
        raise InputError(
            f"--freeze {path}: {error.strerror}; give the output of pip freeze"
        ) from None
    except UnicodeError:
        raise InputError(f"--freeze {path}: not text; give the output of pip freeze") from None
    pairs = [match.groups() for match in _PAIR.finditer(text)]
    found = {_normal(name): version for name, version in pairs or _listed(text)}
    if not found:
        raise InputError(
            f"--freeze {path}: no line like name==1.2.3; give the output of pip freeze"
        )
    return {name: version for name, version in found.items() if name in PACKAGES}


def _listed(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        if match := _FREEZE_LINE.match(line):
            yield match[1], match[2]
        elif match := _DIRECT.match(line):
            wheel = _WHEEL.search(match[2])
            yield match[1], wheel[1] if wheel else UNKNOWN
        elif match := _EDITABLE.match(line):
            yield match[1], UNKNOWN


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def version_findings(versions: Versions, *, here: bool) -> Iterator[Finding]:
    """Known-bad versions and combinations.

    Args:
        here: they are this Python's, so that it and its installation are looked at as well.
    """
    for name in REQUIRED if here else REQUIRED[:1]:  # elsewhere the SDK may be used alone
        if name not in versions:
            yield Finding(
                "not-installed",
                f"{name} is not installed" + (" in this Python" if here else ""),
                where=sys.executable if here else "freeze",
                fix=f"pip install {name}",
            )
    accused = set()
    for rule in KNOWN_BAD:
        version = versions.get(rule.package)
        if version is None or not _matches(version, rule.bad):
            continue
        if not all(
            other in versions and _matches(versions[other], spec) for other, spec in rule.when
        ):
            continue
        accused.add(rule.package)
        others = tuple(f"{other} {versions[other]}" for other, _ in rule.when)
        yield Finding(
            rule.cause,
            rule.says,
            where=f"{rule.package} {version}",
            evidence=(*others, f"source: {rule.source}"),
            fix=rule.fix,
            severity=rule.severity,
        )
    yield from _pre_releases({k: v for k, v in versions.items() if k not in accused})
    if here:
        yield from _this_python()


def _pre_releases(versions: Versions) -> Iterator[Finding]:
    from packaging.version import InvalidVersion, Version

    for name in PRE_RELEASES_WARNED:
        try:
            if name in versions and Version(versions[name]).is_prerelease:
                yield Finding(
                    "pre-release",
                    f"{name} {versions[name]} is a pre-release: the first suspect when something"
                    " is slow or breaks",
                    where=f"{name} {versions[name]}",
                    fix=f"pip install --upgrade {name}",
                    severity="warning",
                )
        except InvalidVersion:
            continue


def _this_python() -> Iterator[Finding]:
    if sys.version_info < PYTHON_NEEDED:
        yield Finding(
            "python-too-old",
            f"Python {sys.version.split()[0]}: tinker needs 3.11 or newer",
            where=sys.executable,
            fix="make an environment with Python 3.11",
        )
    yield from _installed_twice()
    yield from _protobuf_older_than_generated()


def _installed_twice() -> Iterator[Finding]:
    """Two installations of one package: which is imported is a matter of luck."""
    places: dict[str, list[str]] = {}
    for entry in dict.fromkeys(sys.path):
        folder = Path(entry or ".")
        if not folder.is_dir():
            continue
        for info in folder.glob("*.dist-info"):
            name = re.sub(r"[-_.]+", "-", info.name.split("-")[0]).lower()
            if name in PACKAGES:
                places.setdefault(name, []).append(str(info))
    for name, found in places.items():
        if len(found) > 1:
            yield Finding(
                "installed-twice",
                f"{name} is installed {len(found)} times",
                evidence=tuple(found),
                fix=f"pip uninstall {name} until nothing is left, then install it once",
            )


def _protobuf_older_than_generated() -> Iterator[Finding]:
    """The SDK's generated code refuses a protobuf that is older than its generator."""
    from importlib import metadata

    from packaging.version import Version

    try:
        files = metadata.files("tinker") or []
        installed = metadata.version("protobuf")
    except metadata.PackageNotFoundError:
        return
    for file in files:
        if file.name.endswith("_pb2.py"):
            head = Path(str(file.locate())).read_text(encoding="utf-8")[:400]
            needed = re.search(r"Protobuf Python Version: ([\d.]+)", head)
            if needed and Version(installed) < Version(needed[1]):
                yield Finding(
                    "protobuf-too-old",
                    f"protobuf {installed} is older than the SDK's generated code ({needed[1]}):"
                    " import tinker fails",
                    where=f"protobuf {installed}",
                    fix=f"pip install 'protobuf>={needed[1]}'",
                )
                return


def _matches(version: str, specifier: str) -> bool:
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion

    try:
        return SpecifierSet(specifier).contains(version, prereleases=True)
    except InvalidVersion:
        return False
