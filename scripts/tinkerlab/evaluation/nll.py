"""Score items under one or more models: mean NLL per completion token, in nats.

Every request of every model is in flight at once, up to a bound, so that the service can
batch them; each finished score is on the disk before the next is awaited, so that an
interrupted evaluation goes on where it stopped.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tinkerlab.errors import CheckFailed
from tinkerlab.evaluation import hashing
from tinkerlab.runs import jsonl

if TYPE_CHECKING:
    import tinker

# Enough to fill the service's batches; the SDK itself queues above 2000.
IN_FLIGHT = 256


class LogprobClient(Protocol):
    """The one method of ``tinker.SamplingClient`` that scoring needs."""

    def compute_logprobs(self, prompt: tinker.ModelInput) -> Awaitable[list[float | None]]: ...


@dataclass(frozen=True)
class ScoredItem:
    """One held-out conversation, rendered as the trainer renders it.

    Attributes:
        tokens: the whole sequence, prompt and completion.
        scored: positions in ``tokens`` whose NLL counts (those that training puts weight on);
            never 0, which nothing predicts.
        prompt, completion: the text before the first scored token, and from there on.
    """

    index: int
    prompt: str
    completion: str
    tokens: tuple[int, ...]
    scored: tuple[int, ...]

    @property
    def key(self) -> str:
        """Hash of what is scored; equal keys have equal scores under equal weights."""
        return hashing.value_sha256([self.tokens, self.scored])

    @property
    def prompt_tokens(self) -> tuple[int, ...]:
        """What a model is given to answer the item itself."""
        return self.tokens[: self.scored[0]]


class ScoreLog:
    """Scores already made, by (model, item); append-only, one line each.

    The model is named by what fixes its weights: a base model's name or a checkpoint's path.
    """

    def __init__(self, path: Path):
        self.path = path
        jsonl.repair_tail(path)
        self._scores = {(row["model"], row["item"]): float(row["nll"]) for row in jsonl.read(path)}

    def get(self, model: str, item: ScoredItem) -> float | None:
        return self._scores.get((model, item.key))

    def add(self, model: str, item: ScoredItem, nll: float) -> None:
        jsonl.append(self.path, {"model": model, "item": item.key, "nll": nll})
        self._scores[model, item.key] = nll


def mean_nll(logprobs: Sequence[float | None], item: ScoredItem) -> float:
    """Mean of ``-logprob`` over the item's scored tokens, in nats.

    Raises:
        CheckFailed: the service gave another number of logprobs, or one that is not finite.
    """
    if len(logprobs) != len(item.tokens):
        raise CheckFailed(
            f"item {item.index}: {len(logprobs)} logprobs for {len(item.tokens)} tokens"
        )
    total = 0.0
    for position in item.scored:
        logprob = logprobs[position]
        if logprob is None or not math.isfinite(logprob):
            raise CheckFailed(
                f"item {item.index}: the logprob of token {position} is {logprob}; the model's"
                " weights or its precision are broken"
            )
        total -= logprob
    return total / len(item.scored)


def score(
    clients: Mapping[str, LogprobClient],
    items: Sequence[ScoredItem],
    log: ScoreLog,
    *,
    in_flight: int = IN_FLIGHT,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, list[float]]:
    """The NLL of every item under every model, in item order.

    Args:
        clients: a sampling client for each model, by the name that ``log`` files it under.
        progress: called with (scores done, scores in total) after each one.

    Raises:
        CheckFailed: see ``mean_nll``.
    """
    wanted = [(model, item) for item in items for model in clients if log.get(model, item) is None]
    total = len(items) * len(clients)
    done = total - len(wanted)
    progress(done, total)

    async def run() -> None:
        gate = asyncio.Semaphore(in_flight)

        async def one(model: str, item: ScoredItem) -> None:
            nonlocal done
            async with gate:
                logprobs = await clients[model].compute_logprobs(_model_input(item.tokens))
            log.add(model, item, mean_nll(logprobs, item))
            done += 1
            progress(done, total)

        async with asyncio.TaskGroup() as group:
            for model, item in wanted:
                group.create_task(one(model, item))

    if wanted:
        try:
            asyncio.run(run())
        except ExceptionGroup as failures:
            # The first one ended the others; it is the one to tell of.
            raise failures.exceptions[0] from None
    return {model: [_known(log, model, item) for item in items] for model in clients}


def _known(log: ScoreLog, model: str, item: ScoredItem) -> float:
    nll = log.get(model, item)
    assert nll is not None, "scored above"
    return nll


def _model_input(tokens: Sequence[int]) -> tinker.ModelInput:
    import tinker

    return tinker.ModelInput.from_ints(list(tokens))


def records(items: Sequence[ScoredItem], nlls: Sequence[float]) -> list[dict[str, Any]]:
    """The lines of base_model.jsonl or trained_model.jsonl."""
    return [
        {
            "index": item.index,
            "prompt": item.prompt,
            "completion": item.completion,
            "nll": nll,
            "num_tokens": len(item.scored),
        }
        for item, nll in zip(items, nlls, strict=True)
    ]
