"""Holds a shell command to the parser of the program that it names, without running it.

Our scripts by their own argparse parser, ``tinker`` by its click tree, ``make`` by the Makefile,
``python -m tinker_cookbook...`` by the module's configuration. Words that only the shell knows
(cd, export, cp) pass; any other program can't be checked here, and is an error.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from unittest import mock

from markdown_pages import command_lines
from repository import ROOT

# Of the shell, or so common that a wrong option would be seen at once.
SHELL_WORDS = {"cat", "cd", "cp", "echo", "export", "git", "head", "ls", "mkdir", "mv", "source"}
# Scripts that take another command behind `--`.
WRAPPERS = {"rehearse.py", "task_dump.py"}
# Shell fronts of ours, and the script that each hands its arguments to.
FRONTS = {"run_inspect_evals.sh": "run_inspect_evals.py"}


class NotParsed(AssertionError):
    """The command is wrong, or nothing here can tell."""


class _Parsed(Exception):
    """The script's parser took the arguments."""


def check_shell(text: str) -> None:
    """Check every command of a shell block.

    Raises:
        NotParsed: names the command and what is wrong with it.
    """
    for line in command_lines(text):
        for words in _simple_commands(line):
            _check(words)


def _simple_commands(line: str) -> Iterator[list[str]]:
    """The commands of one line, split at ``|``, ``&&``, ``;`` and freed of redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.wordchars += "{}$:=@%+,[]#"
    words: list[str] = []
    skip = False
    for word in [*lexer, ";"]:
        if re.fullmatch(r"[<>]+&?", word):
            skip = True  # the file that follows
        elif re.fullmatch(r"[();|&]+", word):
            if words:
                yield words
            words = []
        elif skip:
            skip = False
        else:
            words.append(word)


def _check(words: list[str]) -> None:
    while words and re.match(r"[A-Za-z_]\w*=", words[0]):
        words = words[1:]  # NAME=value in front of a command
    if not words:
        return
    program, *rest = words
    script = re.fullmatch(r"(?:.*/)?scripts/(\w+\.sh)", program)
    if program in ("python", "bash") and rest:
        _check_python(rest)
    elif script:
        _check_front(script.group(1), rest)
    elif program == "tinker":
        _check_tinker(rest)
    elif program == "make":
        _check_make(rest)
    elif program not in SHELL_WORDS:
        raise NotParsed(f"`{shlex.join(words)}`: nothing here knows the options of {program}")


def _check_python(words: list[str]) -> None:
    if words[0] == "-m":
        _check_module(words[1], words[2:])
        return
    script = re.fullmatch(r"(?:.*/)?scripts/(\w+\.(?:py|sh))", words[0])
    if not script:
        if not re.fullmatch(r"(?:\$\{CLAUDE_PLUGIN_ROOT\}/)?[\w./-]+\.py", words[0]):
            raise NotParsed(f"`python {shlex.join(words)}`: not a script")
        return  # the user's own
    name, arguments = script.group(1), words[1:]
    if name.endswith(".sh"):
        _check_front(name, arguments)
        return
    check_script(name, arguments)
    if name in WRAPPERS and "--" in arguments:
        _check(arguments[arguments.index("--") + 1 :])


def _check_front(name: str, arguments: list[str]) -> None:
    if name not in FRONTS or not (ROOT / "scripts" / name).is_file():
        raise NotParsed(f"there is no scripts/{name}")
    check_script(FRONTS[name], arguments)


def check_script(name: str, arguments: list[str]) -> None:
    """Give ``arguments`` to the parser of ``scripts/NAME``; the script goes no further.

    Raises:
        NotParsed: there is no such script, or its parser refuses.
    """
    path = ROOT / "scripts" / name
    if not path.is_file():
        raise NotParsed(f"there is no scripts/{name}")

    def stopping(method: str):
        original = getattr(argparse.ArgumentParser, method)

        def parse(self, args=None, namespace=None):
            original(self, args, namespace)
            raise _Parsed

        return mock.patch.object(argparse.ArgumentParser, method, parse)

    # A real text stream: rehearse.py sets how it buffers.
    said, ignored = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
    command = f"`{name} {shlex.join(arguments)}`"
    with (
        stopping("parse_args"),
        stopping("parse_intermixed_args"),
        mock.patch.object(sys, "argv", [str(path), *arguments]),
        contextlib.redirect_stderr(said),
        contextlib.redirect_stdout(ignored),
    ):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except _Parsed:
            return
        except SystemExit as end:
            if end.code in (0, None):  # --help
                return
            said.seek(0)
            raise NotParsed(f"{command}: {said.read().strip()[-400:]}") from None
    raise NotParsed(f"{command}: the script ended without reading its arguments")


def _check_tinker(words: list[str]) -> None:
    import click
    from tinker.cli.__main__ import main_cli

    command: click.Command = main_cli
    context = None
    rest = words
    try:
        while True:
            context = command.make_context(command.name or "tinker", list(rest), parent=context)
            if not isinstance(command, click.Group):
                return
            rest = [*context._protected_args, *context.args]
            name, found, rest = command.resolve_command(context, rest)
            assert found is not None, name
            command = found
    except click.exceptions.Exit:
        return  # --help, --version
    except click.ClickException as error:
        raise NotParsed(f"`tinker {shlex.join(words)}`: {error.format_message()}") from None


def tinker_options() -> list[str]:
    """Every option of every ``tinker`` command."""
    import click
    from tinker.cli.__main__ import main_cli

    def walk(command: click.Command) -> Iterator[str]:
        for parameter in command.params:
            yield from parameter.opts
        if isinstance(command, click.Group):
            for name in command.list_commands(click.Context(command)):
                inner = command.get_command(click.Context(command), name)
                assert inner is not None
                yield from walk(inner)

    return sorted(set(walk(main_cli)))


def _check_make(words: list[str]) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    options = iter(words)
    for word in options:
        if word == "-C":
            next(options)
        elif not re.match(r"[A-Z]+=", word) and word not in targets:
            raise NotParsed(f"`make {shlex.join(words)}`: the Makefile has no {word}")


def _check_module(module: str, arguments: list[str]) -> None:
    """``python -m tinker_cookbook.recipes.x.train key=value``: the module and its config's keys."""
    if module.split(".")[0] not in ("tinker_cookbook", "tinker", "pip", "venv"):
        raise NotParsed(f"`python -m {module}`: nothing here knows its options")
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise NotParsed(f"there is no module {module}")
    keys = [word.split("=")[0] for word in arguments if re.match(r"[a-z]\w*=", word)]
    if keys:
        import chz

        config = getattr(importlib.import_module(module), "CLIConfig", None)
        known = set(chz.chz_fields(config)) if config else set()
        if set(keys) - known:
            raise NotParsed(f"python -m {module} has no {sorted(set(keys) - known)}")
