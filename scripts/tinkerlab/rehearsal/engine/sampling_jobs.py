"""What the sampler keeps of a request while it runs: its job, its rows, its place in the queue."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from queue import SimpleQueue
from typing import Protocol

import numpy as np

from tinkerlab.rehearsal.engine import token_choice
from tinkerlab.rehearsal.engine.base import BaseModel
from tinkerlab.rehearsal.engine.lora import LoraWeights
from tinkerlab.rehearsal.engine.prompt_scoring import PromptScores
from tinkerlab.rehearsal.engine.stop_conditions import StopWatch
from tinkerlab.rehearsal.engine.token_choice import ChoiceRule
from tinkerlab.rehearsal.engine.types import (
    SampledTokens,
    SamplingRequest,
    SamplingResult,
    StopReason,
    TopK,
)


class Adapter(Protocol):
    """What sampling needs of a frozen adapter; two requests share one if it is one object."""

    @property
    def weights(self) -> LoraWeights: ...


class Outbox:
    """Hands results to their futures in a thread of its own.

    A future's callbacks run where its result is set. The service's write to a database; the
    running batch shall not wait for that.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sampler-outbox", daemon=True)
        self._thread.start()

    def put(self, deliver: Callable[[], object]) -> None:
        self._queue.put(deliver)

    def close(self) -> None:
        """Deliver what is there and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (deliver := self._queue.get()) is not None:
            with contextlib.suppress(InvalidStateError):  # cancelled a moment ago
                deliver()


class Job:
    """One request on its way to its result."""

    def __init__(
        self,
        base: BaseModel,
        request: SamplingRequest,
        adapter: Adapter | None,
        outbox: Outbox,
    ) -> None:
        self.request = request
        self.adapter = adapter
        self.future: Future[SamplingResult] = Future()
        self.scores = PromptScores(request) if _asks_about_prompt(request) else None
        self.rows = [Row(self, base, index) for index in range(request.num_samples)]
        self._running = len(self.rows)
        self._outbox = outbox
        self._over = False

    @property
    def weights(self) -> LoraWeights | None:
        return None if self.adapter is None else self.adapter.weights

    @property
    def over(self) -> bool:
        """Finished, failed or cancelled: nothing more is to be done for it."""
        return self._over or self.future.done()

    def row_finished(self) -> None:
        """Note that one more row is done; the last one delivers the result."""
        self._running -= 1
        if self._running == 0:
            result = self.scores.result() if self.scores else SamplingResult()
            result.sequences = [row.sampled() for row in self.rows]
            self._over = True
            self._outbox.put(partial(self.future.set_result, result))

    def fail(self, error: BaseException) -> None:
        if not self.over:
            self._over = True
            self._outbox.put(partial(self.future.set_exception, error))

    def cancel(self) -> None:
        if not self.over:
            self._over = True
            self._outbox.put(self.future.cancel)


class Row:
    """One completion that grows.

    Attributes:
        length: columns that it holds in a key/value buffer. Its last token isn't among them.
    """

    def __init__(self, job: Job, base: BaseModel, index: int) -> None:
        request = job.request
        self.job = job
        self.rule = ChoiceRule(request.temperature, request.top_p, request.top_k)
        self.top = request.topk_sample_logprobs
        self.length = 0
        self.tokens: list[int] = []
        self.limit = (
            base.context_length - len(request.tokens)
            if request.max_tokens is None
            else request.max_tokens
        )
        stops = base.eos_token_ids if request.stop_tokens is None else request.stop_tokens
        self._watch = StopWatch(
            stops, request.stop_strings, base.tokenizer if request.stop_strings else None
        )
        self._random = token_choice.row_generator(request.seed, index)
        self._logprobs: list[float] = []
        self._top: list[tuple[np.ndarray, np.ndarray]] = []
        self._reason: StopReason = "length"

    def next_uniform(self) -> float:
        return 0.0 if self.rule.temperature == 0 else self._random.random()

    def accept(self, token: int, logprob: float, top: tuple[np.ndarray, np.ndarray] | None) -> bool:
        """Append a chosen token; True if it is the last one."""
        self.tokens.append(token)
        self._logprobs.append(logprob)
        if self.top and top is not None:
            self._top.append((top[0][: self.top], top[1][: self.top]))
        if self._watch.ends_with(token):
            self._reason = "stop"
            return True
        return len(self.tokens) >= self.limit

    def sampled(self) -> SampledTokens:
        topk = None
        if self.top:
            topk = TopK(
                np.stack([ids for ids, _ in self._top]).astype(np.int32),
                np.stack([logprobs for _, logprobs in self._top]).astype(np.float32),
            )
        return SampledTokens(
            tokens=np.array(self.tokens, dtype=np.int32),
            logprobs=np.array(self._logprobs, dtype=np.float32),
            stop_reason=self._reason,
            topk=topk,
        )


@dataclass(eq=False)
class Prefill:
    """Tokens to run through the model before rows can go on.

    A fresh request's prompt, for all its rows at once; or, for a row that had to give up its
    place in the buffers, its prompt and what it has sampled so far.
    """

    job: Job
    tokens: list[int]
    rows: list[Row]
    fresh: bool = True

    @property
    def scores(self) -> PromptScores | None:
        return self.job.scores if self.fresh else None

    @property
    def generates(self) -> bool:
        """False if one token is all that is wanted: nothing is decoded, no buffer is needed."""
        return any(row.limit - len(row.tokens) > 1 for row in self.rows)


def adapter_groups(jobs: Sequence[Job]) -> list[tuple[int, LoraWeights | None]]:
    """The row groups that ``use_adapters`` takes, for one row of each job."""
    runs = [list(same) for _, same in groupby(jobs, key=lambda job: id(job.adapter))]
    return [(len(same), same[0].weights) for same in runs]


class FairQueue:
    """Takes turns between adapters, so that a client with a thousand requests delays the next
    client by one of them; first come, first served within an adapter."""

    def __init__(self) -> None:
        self._lines: OrderedDict[int, deque[Prefill]] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(line) for line in self._lines.values())

    def __iter__(self) -> Iterator[Prefill]:
        for line in self._lines.values():
            yield from line

    def push(self, work: Prefill, *, front: bool = False) -> None:
        line = self._lines.setdefault(id(work.job.adapter), deque())
        if front:
            line.appendleft(work)
        else:
            line.append(work)

    def peek(self) -> Prefill | None:
        """The next one that is still wanted; what was cancelled is dropped on the way."""
        while self._lines:
            key, line = next(iter(self._lines.items()))
            while line and line[0].job.over:
                line.popleft()
            if line:
                return line[0]
            del self._lines[key]
        return None

    def pop(self) -> Prefill:
        """Take what :meth:`peek` showed; the turn passes to the next adapter."""
        key, line = next(iter(self._lines.items()))
        work = line.popleft()
        self._lines.move_to_end(key)
        return work

    def clear(self) -> list[Prefill]:
        everything = list(self)
        self._lines.clear()
        return everything


def _asks_about_prompt(request: SamplingRequest) -> bool:
    return (
        request.prompt_logprobs
        or request.topk_prompt_logprobs > 0
        or request.prompt_alt_tokens_k > 0
        or request.target_prompt_logprobs is not None
    )
