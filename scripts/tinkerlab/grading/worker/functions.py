"""A user's scoring function: import its file, see what it takes, read what it gives.

The function's parameters are filled by their names: ``completion`` (text), ``answer``,
``prompt`` (the messages), ``row`` (the row's further fields, a dict); any other name is a field
of the row, and ``**fields`` takes whatever no other parameter names. It may be async.

It returns a finite number, or true/false (1 and 0), or ``{"score": number, "correct": bool,
"extracted": text}`` of which only the score is needed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import math
import numbers
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tinkerlab.grading.worker.refusal import Refused

KNOWN = ("completion", "answer", "prompt", "row")
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def make_function(options: dict[str, Any]) -> tuple[Callable[[dict], Any], dict[str, Any]]:
    """The scorer that calls ``options["function"]`` of ``options["file"]``.

    Raises:
        Refused: the file can't be imported, has no such function, or one that takes no
            completion.
    """
    file, name = Path(options["file"]), options["function"]
    function = _load(file, name)
    where = f"{file.name}:{name}"
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise Refused(f"{where}: its parameters can't be read; wrap it in a def") from None
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if "completion" not in parameters and not open_ended:
        hint = (
            "; it is called once for each completion, not with a list"
            if "completions" in parameters
            else ""
        )
        raise Refused(
            f"{where} takes ({', '.join(parameters)}) but no 'completion'; write def"
            f" {name}(completion, answer){hint}"
        )
    positional_only = [p.name for p in parameters.values() if p.kind is p.POSITIONAL_ONLY]
    if positional_only:
        raise Refused(
            f"{where}: {', '.join(positional_only)} can't be given by name; remove the '/'"
        )

    def score(attempt: dict[str, Any]) -> dict[str, Any]:
        result = function(**_arguments(attempt, parameters, open_ended))
        if inspect.isawaitable(result):
            result = asyncio.run(_awaited(result))
        return read_result(result)

    named = {p.name: p.default is p.empty for p in parameters.values() if p.kind in _NAMED}
    facts = {
        "needs_answer": named.get("answer", False),
        "fields": [key for key, required in named.items() if required and key not in KNOWN],
    }
    return score, facts


def read_result(result: Any) -> dict[str, Any]:
    """What a function returned, as a reply; an error where it is no score."""
    given: dict[str, Any] = {}
    if isinstance(result, dict):
        if "score" not in result:
            return {
                "error": f"returned a dict without 'score' (keys: {', '.join(map(str, result))})"
            }
        given, result = result, result["score"]
    if hasattr(result, "item") and not isinstance(result, numbers.Number):
        try:
            result = result.item()  # a numpy or torch scalar
        except (ValueError, RuntimeError):
            return {"error": f"returned {type(result).__name__} of several values, not a number"}
    if isinstance(result, bool) or type(result).__name__ == "bool_":
        truth = bool(result)
        return _reply(float(truth), given, truth)
    if not isinstance(result, numbers.Real):
        kind = "" if result is None else f"{type(result).__name__} "
        return {"error": f"returned {kind}{repr(result)[:60]}, not a number"}
    score = float(result)
    if not math.isfinite(score):
        return {"error": f"returned {score}, not a finite number"}
    return _reply(score, given, None)


def _reply(score: float, given: dict[str, Any], correct: bool | None) -> dict[str, Any]:
    extracted = given.get("extracted")
    return {
        "score": score,
        "correct": bool(given["correct"]) if given.get("correct") is not None else correct,
        "extracted": None if extracted is None else str(extracted)[:1000],
    }


def _arguments(attempt: dict[str, Any], parameters: Any, open_ended: bool) -> dict[str, Any]:
    row = attempt["row"]
    arguments = {}
    for name, parameter in parameters.items():
        if parameter.kind not in _NAMED:
            continue
        if name in KNOWN:
            arguments[name] = attempt[name]
        elif name in row:
            arguments[name] = row[name]
        elif parameter.default is parameter.empty:
            raise TypeError(f"takes {name!r}, which the row does not have")
    if open_ended:
        known = {key: attempt[key] for key in KNOWN if key != "row"}
        arguments = {**{k: v for k, v in row.items() if k not in KNOWN}, **known, **arguments}
    return arguments


async def _awaited(result: Any) -> Any:
    return await result


def _load(file: Path, name: str) -> Callable[..., Any]:
    sys.path.insert(0, str(file.parent))  # so that it may import its neighbours
    sys.argv = [str(file)]
    sys.dont_write_bytecode = True
    try:
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None and spec.loader is not None, "a .py file"
        module = importlib.util.module_from_spec(spec)
        sys.modules[file.stem] = module  # dataclasses and pickles look their module up
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise Refused(f"{file.name} line {error.lineno}: syntax error ({error.msg})") from None
    except BaseException as error:  # an import may exit, too
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f.lineno for f in frames if Path(f.filename) == file]
        line = f" line {lines[-1]}" if lines else ""
        text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        # A CUDA build of torch maps more than the limit when it is merely imported.
        full = isinstance(error, MemoryError) or "allocate memory" in text or "map segment" in text
        hint = "; raise the grader's memory limit" if full else ""
        raise Refused(f"{file.name}{line}: can't be imported ({text}){hint}") from None
    found = vars(module)
    if name not in found:
        functions = [k for k, v in found.items() if inspect.isfunction(v) and not k.startswith("_")]
        has = f"it has {', '.join(functions[:8])}" if functions else "it has no functions"
        raise Refused(f"{file.name}: no function {name!r}; {has}")
    if not callable(found[name]):
        raise Refused(f"{file.name}: {name!r} is {type(found[name]).__name__}, not a function")
    return found[name]
