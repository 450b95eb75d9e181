"""Verifiers that need a time limit: they evaluate what a model wrote, or may take for ever.

math-verify and several scorers of reasoning-gym hand parts of a completion to sympy's parser,
which evaluates Python; a regular expression may backtrack without end. Hence a process.
"""

from __future__ import annotations

import json
import logging
import random
import re
from collections.abc import Callable
from typing import Any

from tinkerlab.grading import rules, texts
from tinkerlab.grading.worker.refusal import Refused

Scorer = Callable[[dict], Any]
MAX_SHOWN = 500
_GRIDS = ("arc_agi", "rearc")  # their scorers compare with tuples, which JSON has not
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|mathrm|mbox)\s*\{([^{}]*)\}")


def make_math(options: dict[str, Any]) -> tuple[Scorer, dict[str, Any]]:
    r"""Mathematical equality of the completion's answer and the reference, by math-verify.

    The last ``\\boxed{}`` or ``<answer>`` of the completion is compared; without one,
    math-verify looks for an expression in the whole text.

    Raises:
        Refused: math-verify is not installed.
    """
    try:
        from math_verify import parse, verify
    except ImportError:
        raise Refused(
            "grader math needs the package math-verify: pip install math-verify"
        ) from None
    logging.getLogger("math_verify").setLevel(logging.ERROR)

    def parsed(text: str) -> list[Any]:
        return parse(text, parsing_timeout=2)

    def score(attempt: dict[str, Any]) -> dict[str, Any]:
        completion = texts.tail(attempt["completion"])
        marked = texts.marked_answer(completion)
        given = parsed(_boxed(marked)) if marked is not None else parsed(completion)
        if marked is not None and not given:
            given = parsed(marked)
        for answer in rules.alternatives(attempt["answer"]):
            wanted = str(answer)
            reference = texts.marked_answer(wanted) or wanted
            same_text = marked is not None and _squeezed(marked) == _squeezed(reference)
            if same_text or (given and verify(parsed(_boxed(reference)), given, timeout_seconds=3)):
                return {"score": 1.0, "correct": True, "extracted": _shown(marked, given)}
        return {"score": 0.0, "correct": False, "extracted": _shown(marked, given)}

    return score, {"needs_answer": True}


def make_regex(options: dict[str, Any]) -> tuple[Scorer, dict[str, Any]]:
    """``options["pattern"]`` is found in the completion (``re.search``, case counts).

    With a group, the last match's group (the one named ``answer``, or the first) must equal the
    row's answer, where the row has one.

    Raises:
        Refused: not a regular expression.
    """
    try:
        pattern = re.compile(options["pattern"])
    except re.error as error:
        raise Refused(f"regex {options['pattern']!r}: {error}") from None
    group = "answer" if "answer" in pattern.groupindex else 1 if pattern.groups else None

    def score(attempt: dict[str, Any]) -> dict[str, Any]:
        completion = attempt["completion"]
        if group is None:
            match = pattern.search(completion)
            return _verdict(match is not None, match and match.group()[:MAX_SHOWN])
        matches = list(pattern.finditer(completion))
        found = matches[-1][group] if matches else None
        if found is None or attempt["answer"] is None:
            return _verdict(found is not None, found)
        wanted = {str(answer).strip() for answer in rules.alternatives(attempt["answer"])}
        return _verdict(found.strip() in wanted, found)

    return score, {"needs_answer": False}


def make_json_schema(options: dict[str, Any]) -> tuple[Scorer, dict[str, Any]]:
    """The completion is JSON that obeys the schema in ``options["schema"]``.

    The JSON is the whole completion, or the one fenced block in it.

    Raises:
        Refused: jsonschema is not installed, or the schema is none.
    """
    try:
        import jsonschema
        import referencing
        from jsonschema.validators import validator_for
    except ImportError:
        raise Refused(
            "grader json_schema needs the package jsonschema: pip install jsonschema"
        ) from None
    schema = options["schema"]
    validator_class = validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        validator_class.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise Refused(f"{options['file']}: not a JSON schema: {error.message[:200]}") from None
    # An empty registry: a $ref to somewhere else must not be fetched from the network.
    validator = validator_class(schema, registry=referencing.Registry())

    def score(attempt: dict[str, Any]) -> dict[str, Any]:
        text = attempt["completion"].strip()
        blocks = texts.fenced_blocks(text)
        if len(blocks) == 1:
            text = blocks[0][1].strip()
        try:
            value = json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            return _verdict(False, None)
        return _verdict(validator.is_valid(value), text[:MAX_SHOWN])

    return score, {"needs_answer": False}


def make_reasoning_gym(options: dict[str, Any]) -> tuple[Scorer, dict[str, Any]]:
    """The scorer that the task itself brings; a row names its task and holds its entry.

    Scored is the marked answer; without a mark the last number where the reference is one,
    else the whole completion. Correct is a full score; partial credit stays in ``score``.

    Raises:
        Refused: reasoning-gym is not installed.
    """
    try:
        import reasoning_gym
    except ImportError:
        raise Refused(
            "grader reasoning_gym needs the package reasoning-gym: pip install reasoning-gym"
        ) from None
    datasets: dict[str, Any] = {}

    def score(attempt: dict[str, Any]) -> dict[str, Any]:
        task = attempt["row"]["reasoning_gym"]
        key = json.dumps([task["name"], task["options"]], sort_keys=True)
        if key not in datasets:
            datasets[key] = reasoning_gym.create_dataset(task["name"], **task["options"])
        found = _stated(attempt["completion"], str(attempt["answer"]))
        # Some scorers draw random numbers; the same completion must get the same score.
        random.seed(0)
        entry = {
            "question": task["question"],
            "answer": attempt["answer"],
            "metadata": _tuples(task["metadata"]) if task["name"] in _GRIDS else task["metadata"],
        }
        value = float(datasets[key].score_answer(found, entry)) if found is not None else 0.0
        return {"score": value, "correct": value >= 1.0, "extracted": found and found[:MAX_SHOWN]}

    return score, {"needs_answer": False, "fields": ["reasoning_gym"]}


def _stated(completion: str, reference: str) -> str | None:
    marked = texts.marked_answer(completion)
    if marked is None and texts.number_of(reference) is None:
        return completion.strip() or None
    if texts.number_of(reference) is not None:
        number = texts.final_number(completion)
        # "3 + 4 = 7" and "42 apples" state a number; the task's scorer wants it alone.
        return number.text if number is not None else marked
    return marked


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _boxed(text: str) -> str:
    return f"\\boxed{{{text.strip().strip('$')}}}"


def _squeezed(text: str) -> str:
    return "".join(_TEXT_COMMAND.sub(r"\1", text).replace("$", "").split())


def _shown(marked: str | None, given: list[Any]) -> str | None:
    text = marked if marked is not None else str(given[-1]) if given else None
    return text and text[:MAX_SHOWN]


def _verdict(correct: bool, extracted: str | None) -> dict[str, Any]:
    return {
        "score": float(correct),
        "correct": correct,
        "extracted": extracted and extracted[:MAX_SHOWN],
    }


def _no_constant(name: str) -> Any:
    raise ValueError(name)
