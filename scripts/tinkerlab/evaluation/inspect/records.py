"""From Inspect's log of a task to our items, and what must be known before they are believed.

An item's score is Inspect's own: the value of the task's first scorer, or of the one that is
named, reduced over epochs by the task's first reducer. It must lie in 0..1, or ``correct_at``
must say what of it is right. An item is left out, with a reason, when one of its samples failed
or its scorer gave no score.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tinkerlab.errors import CheckFailed, InputError
from tinkerlab.evaluation.suite_results import SuiteItem

if TYPE_CHECKING:
    from inspect_ai.event import ModelEvent
    from inspect_ai.log import EvalLog, EvalSample

TOLERANCE = 1e-6
MEANS = ("accuracy", "mean")


@dataclass(frozen=True)
class Choice:
    """Which value of which scorer is the result.

    Attributes:
        scorer: None is the task's first.
        value: a key of a scorer that gives several values; without a scorer, it may be one's name.
        correct_at: scores from here on are right.
        metric: Inspect's mean of the value, if it has another name than accuracy or mean.
    """

    scorer: str | None = None
    value: str | None = None
    correct_at: float | None = None
    metric: str | None = None


@dataclass(frozen=True)
class Extract:
    """One model's log as items.

    Attributes:
        facts: of its replies and of Inspect's own result; goes into the summary.
    """

    items: list[SuiteItem]
    facts: dict[str, Any]


def extract(log: EvalLog, choice: Choice) -> Extract:
    """Items of one model's log, which must hold its samples, in the order of the data set.

    Raises:
        InputError: no such scorer or value.
        CheckFailed: scores that are no share of right.
    """
    names = _scorers(log)
    if choice.scorer is None and choice.value in names:
        choice = replace(choice, scorer=choice.value, value=None)
    scorer = _scorer(log, choice, names)
    values = _values(log, scorer, choice)
    samples: dict[str, list[EvalSample]] = {}
    for sample in sorted(log.samples or [], key=lambda sample: sample.epoch):
        samples.setdefault(str(sample.id), []).append(sample)
    order = [str(name) for name in (log.eval.dataset.sample_ids or samples)]
    items = [
        _item(name, samples[name], scorer, values.get(name), log)
        for name in order
        if name in samples
    ]
    return Extract(items, _facts(log, scorer, choice, items))


def _scorers(log: EvalLog) -> list[str]:
    """The names of the task's scorers, in its order."""
    found = (name for sample in log.samples or [] for name in (sample.scores or {}))
    return list(dict.fromkeys(found))


def _scorer(log: EvalLog, choice: Choice, names: list[str]) -> str | None:
    """Name of the chosen scorer; None where no sample was scored."""
    if choice.scorer is None or not names:
        return names[0] if names else None
    if choice.scorer not in names:
        raise InputError(f"{log.eval.task}: no scorer {choice.scorer!r}; it has {', '.join(names)}")
    return choice.scorer


def _values(log: EvalLog, scorer: str | None, choice: Choice) -> dict[str, float]:
    """Sample id -> score, from Inspect's reduction over epochs; unscored samples are not in it."""
    reduction = next((r for r in log.reductions or [] if r.scorer == scorer), None)
    found = {}
    for sample in reduction.samples if reduction else []:
        value = _number(sample.value, log.eval.task, choice)
        if value is not None:
            found[str(sample.sample_id)] = value
    return found


def _number(value: Any, task: str, choice: Choice) -> float | None:
    """A score as a share of right, None where there is none.

    Raises:
        InputError: several values and none is chosen, or another than there is.
        CheckFailed: out of 0..1.
    """
    if isinstance(value, Mapping):
        if choice.value not in value:
            names = ", ".join(map(str, value))
            raise InputError(
                f"{task}: its scorer gives several values ({names}); say which is the result with"
                " --score VALUE (nothing is sampled again)"
            )
        value = value[choice.value]
    elif isinstance(value, list | tuple):
        raise CheckFailed(f"{task}: its scorer gives a list of values, which has no name to choose")
    elif choice.value is not None:
        raise InputError(f"{task}: its scorer gives one value, so none is called {choice.value!r}")
    if value is None or isinstance(value, str):
        # Inspect's reducers have turned what they can into numbers.
        raise CheckFailed(f"{task}: the score {value!r} is no number")
    number = float(value)
    if math.isnan(number):
        return None
    if choice.correct_at is not None:
        return float(number >= choice.correct_at)
    if not 0 <= number <= 1:
        raise CheckFailed(
            f"{task}: the score {number:g} is not in 0..1; say with --correct-at which scores count"
            " as correct (nothing is sampled again)"
        )
    return number


def _item(
    name: str, samples: list[EvalSample], scorer: str | None, value: float | None, log: EvalLog
) -> SuiteItem:
    first = samples[0]
    score = (first.scores or {}).get(scorer or "")
    error = next((_line(sample.error.message) for sample in samples if sample.error), None)
    if error is None and value is None:
        explained = score.explanation if score is not None else None
        error = f"not scored: {_line(explained or 'the scorer gave no score')}"
    cut = [event.output.stop_reason == "max_tokens" for s in samples for event in replies(s, log)]
    return SuiteItem(
        id=name,
        question=_question(first),
        ground_truth=_joined(first.target),
        completion=_completion(first),
        correct=_as_answer(value),
        extracted=score.answer if score is not None else None,
        error=error,
        truncated=any(cut),
    )


def replies(sample: EvalSample, log: EvalLog) -> Iterator[ModelEvent]:
    """The replies of the model that is measured; a judge's are not among them."""
    for event in sample.events:
        if event.event != "model" or event.error is not None:
            continue
        if event.model == log.eval.model and event.role is None:
            yield event


def _facts(
    log: EvalLog, scorer: str | None, choice: Choice, items: list[SuiteItem]
) -> dict[str, Any]:
    events = [event for sample in log.samples or [] for event in replies(sample, log)]
    # Some tasks, such as tau2's, catch the error of a request (a judge's, too) and go on, to a
    # wrong answer.
    passed_over = sum(
        event.event == "model" and event.error is not None
        for sample in log.samples or []
        if sample.error is None
        for event in sample.events
    )
    tokens = [event.output.usage.output_tokens if event.output.usage else 0 for event in events]
    prompts = [event.output.usage.input_tokens if event.output.usage else 0 for event in events]
    scored = [float(item.correct) for item in items if item.error is None]
    metrics = _metrics(log, scorer, choice.value)
    own = next(
        (metrics[n] for n in (choice.metric, *MEANS) if n is not None and n in metrics), None
    )
    mean = sum(scored) / len(scored) if scored else None
    # Not comparable where Inspect counts the other epochs of a sample that failed in one.
    failed = any(sample.error for sample in log.samples or [])
    comparable = not failed and choice.correct_at is None
    return {
        "log": log.location.rpartition("/")[2],
        "status": log.status,
        "scorer": scorer,
        "metrics": metrics,
        "mean_of_items": mean,
        "agrees": _equal(own, mean) if comparable else None,
        "failed_items": len({str(s.id) for s in log.samples or [] if s.error}),
        "requests_passed_over": passed_over,
        "replies": len(events),
        "truncated_replies": sum(event.output.stop_reason == "max_tokens" for event in events),
        "prompt_tokens": sum(prompts),
        "sampled_tokens": sum(tokens),
        "temperatures": sorted({event.config.temperature or 0.0 for event in events}),
        "max_tokens": sorted({event.config.max_tokens or 0 for event in events}),
    }


def _equal(own: float | None, mean: float | None) -> bool | None:
    """None where the task has no such mean."""
    return None if own is None or mean is None else abs(own - mean) <= TOLERANCE


def _metrics(log: EvalLog, scorer: str | None, value: str | None) -> dict[str, float | None]:
    """Inspect's metrics of the scorer; of one value, where it reckons them for each."""
    scores = [s for s in (log.results.scores if log.results else []) if s.scorer == scorer]
    found = next((s for s in scores if s.name == value), scores[0] if scores else None)
    metrics = found.metrics if found else {}
    return {
        name: float(metric.value) if math.isfinite(metric.value) else None
        for name, metric in metrics.items()
    }


def _as_answer(value: float | None) -> bool | float:
    if value is None:
        return False
    return bool(value) if value in (0.0, 1.0) else value


def _question(sample: EvalSample) -> str:
    """The input as text, with the choices of a multiple-choice item."""
    if isinstance(sample.input, str):
        text = sample.input
    else:
        text = "\n\n".join(f"{message.role}: {message.text}" for message in sample.input)
    listed = [f"{chr(ord('A') + i)}) {choice}" for i, choice in enumerate(sample.choices or [])]
    return "\n".join([text, *listed])


def _completion(sample: EvalSample) -> str:
    """The last reply: its text, or the tools that it calls."""
    output = sample.output
    if output.completion or not output.choices:
        return output.completion
    calls = output.choices[0].message.tool_calls or []
    return "\n".join(
        f"{call.function}({json.dumps(call.arguments, ensure_ascii=False)})" for call in calls
    )


def _joined(target: str | list[str]) -> str:
    return target if isinstance(target, str) else json.dumps(target, ensure_ascii=False)


def _line(text: str) -> str:
    return " ".join(text.split())[:300]
