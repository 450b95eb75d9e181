"""Build a chz config from a YAML file and ``key=value`` overrides, with errors that help.

Knows nothing about a particular trainer: every chz class of plain fields will do.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import chz

from tinkerlab.errors import InputError

Config = TypeVar("Config")


def load(
    cls: type[Config],
    file: Path | None,
    overrides: Sequence[str],
    elsewhere: Mapping[str, str] | None = None,
) -> Config:
    """An instance of ``cls`` from ``file``'s keys, overridden by ``key=value`` strings.

    Args:
        elsewhere: keys that another tool has, and what to say to those who write them here.

    Raises:
        InputError: an unreadable file, an unknown key (names the nearest one), a value of the
            wrong type, a missing required key, or what the class's own validators refuse.
    """
    values: dict[str, Any] = {}
    if file is not None:
        for key, value in read_yaml(file).items():
            values[str(key)] = cast_field(cls, str(key), value, str(file), elsewhere)
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key:
            raise InputError(f"override {override!r}: write it as key=value")
        values[key] = cast_field(cls, key, value, "command line", elsewhere)
    missing = [name for name in required_fields(cls) if name not in values or values[name] is None]
    if missing:
        raise InputError(
            f"missing: {', '.join(missing)}; set it in the config file or as key=value"
        )
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise InputError(str(error)) from None


def read_yaml(file: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        InputError: no such file, not YAML, or not a mapping.
    """
    import yaml

    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"config {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"config {file}: not UTF-8 (byte {error.start}); save it as UTF-8"
        ) from None
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"config {file}: not YAML: {reason}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise InputError(f"config {file}: must be 'key: value' lines, not a {_kind(document)}")
    return document


def field_types(cls: type) -> dict[str, Any]:
    """Every field's name and declared type, in order of declaration."""
    hints = typing.get_type_hints(cls)
    return {name: hints[name] for name in chz.chz_fields(cls)}


def required_fields(cls: type) -> list[str]:
    """Names of the fields that have no default."""
    parameters = inspect.signature(cls).parameters
    return [
        name for name in chz.chz_fields(cls) if parameters[name].default is inspect.Parameter.empty
    ]


def cast_field(
    cls: type, key: str, value: Any, where: str, elsewhere: Mapping[str, str] | None = None
) -> Any:
    """``value`` as the type that ``cls`` declares for ``key``.

    Raises:
        InputError: no such key, or a value that is not of that type.
    """
    known = field_types(cls)
    if key not in known:
        if key in (elsewhere or {}):
            raise InputError(f"{where}: unknown key {key!r}; {(elsewhere or {})[key]}")
        nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        hint = f"did you mean {nearest[0]}?" if nearest else f"known: {', '.join(known)}"
        raise InputError(f"{where}: unknown key {key!r}; {hint}")
    try:
        return _cast(value, known[key])
    except ValueError:
        raise InputError(
            f"{where}: {key} must be {describe(known[key])}, got {value!r} ({_kind(value)})"
        ) from None


def _cast(value: Any, declared: Any) -> Any:
    """Exact types pass; a string is read as the declared type, as chz does on a command line."""
    options = _options(declared)
    for option in options:
        if typing.get_origin(option) in (dict, list):
            with contextlib.suppress(ValueError):
                return _collection(value, option)
        elif typing.get_origin(option) is Literal:
            if any(value == choice and type(value) is type(choice) for choice in option.__args__):
                return value
        elif option is type(None):
            if value is None or (isinstance(value, str) and value in ("None", "null", "")):
                return None
        elif option is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        elif type(value) is option and option is not str:
            return value
    if isinstance(value, str):
        for option in options:
            if option in (int, float, bool):
                try:
                    return _read(value, option)
                except ValueError:
                    continue
    if isinstance(value, str) and str in options:
        return value
    if str in options and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)  # run_name: 42 in YAML
    raise ValueError


def _collection(value: Any, declared: Any) -> Any:
    """A list or mapping, also as YAML in a string; a plain string is a list of one."""
    kind, members = typing.get_origin(declared), typing.get_args(declared)
    if isinstance(value, str) and value.strip()[:1] in ("[", "{"):
        import yaml

        try:
            value = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ValueError from None
    if kind is list:
        if isinstance(value, str) and value not in ("None", "null", ""):
            value = [value]
        if not isinstance(value, list):
            raise ValueError
        return [_cast(item, members[0]) for item in value]
    if not isinstance(value, dict):
        raise ValueError
    return {_cast(key, members[0]): _cast(item, members[1]) for key, item in value.items()}


def _read(text: str, option: type) -> Any:
    if option is bool:
        words = {"true": True, "false": False}
        if text.strip().lower() not in words:
            raise ValueError
        return words[text.strip().lower()]
    return option(text.replace("_", "")) if option is int else option(text)


def _options(declared: Any) -> tuple[Any, ...]:
    if typing.get_origin(declared) in (typing.Union, types.UnionType):
        return typing.get_args(declared)
    return (declared,)


_SAMPLES = {int: "1", float: "0.5", bool: "true", str: "text"}


def describe(declared: Any) -> str:
    """A type in words: ``a number or 'auto'``."""
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    parts: list[str] = []
    for option in _options(declared):
        if typing.get_origin(option) is Literal:
            parts += [repr(choice) for choice in option.__args__]
        elif option is type(None):
            parts.append("null")
        elif typing.get_origin(option) is list:
            parts.append(f"a list like [{_SAMPLES.get(option.__args__[0], '...')}, ...]")
        elif typing.get_origin(option) is dict:
            parts.append(f"a mapping like {{name: {_SAMPLES.get(option.__args__[1], '...')}}}")
        else:
            parts.append(words.get(option, str(option)))
    return " or ".join(parts)


def _kind(value: Any) -> str:
    names = {dict: "mapping", list: "list", str: "text", bool: "true/false", type(None): "nothing"}
    return names.get(type(value), type(value).__name__)


def to_dict(config: Any) -> Mapping[str, Any]:
    """The config's fields and values."""
    return {name: getattr(config, name) for name in chz.chz_fields(config)}


def to_yaml(config: Any) -> str:
    """The config as YAML that ``load`` reads back to an equal config."""
    import yaml

    return yaml.safe_dump(dict(to_dict(config)), sort_keys=False, allow_unicode=True)
