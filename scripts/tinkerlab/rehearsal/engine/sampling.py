"""Sampling with continuous batching: one thread, one running batch, any number of adapters.

Requests join the batch between two decoding steps and leave it when they are done; prompts are
run together, and a long one a chunk at a time. Prompt scoring alone (``max_tokens=1`` with
prompt logprobs, what ``compute_logprobs`` sends) never takes a place in the batch.

What holds, and to which precision (float32): a token's logprob equals the training engine's and
a plain transformers forward's to 1e-4; a seeded request gives the same tokens whatever runs
beside it, except where rounding (some 1e-6) moves a boundary: see token_choice.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import torch
from torch import Tensor

from tinkerlab.rehearsal.engine import cached_attention
from tinkerlab.rehearsal.engine.base import BaseModel
from tinkerlab.rehearsal.engine.kv_cache import PromptKV
from tinkerlab.rehearsal.engine.sampling_checks import check_request
from tinkerlab.rehearsal.engine.sampling_jobs import (
    Adapter,
    FairQueue,
    Job,
    Outbox,
    Prefill,
    Row,
)
from tinkerlab.rehearsal.engine.sampling_prompts import LongPrompt, run_prompts, similar_lengths
from tinkerlab.rehearsal.engine.sampling_rows import RowGroup, RunningRows, SamplerLimits
from tinkerlab.rehearsal.engine.token_choice import Choices, Chooser
from tinkerlab.rehearsal.engine.types import SamplingRequest, SamplingResult
from tinkerlab.rehearsal.errors import UserError


@dataclass
class SamplerCounts:
    """What the sampler did so far; read it from any thread, for reports and tests."""

    requests: int = 0
    prompt_passes: int = 0
    prompt_tokens: int = 0
    decode_passes: int = 0
    sampled_tokens: int = 0
    most_rows: int = 0
    set_back: int = 0


class Sampler:
    """Samples from a base model and any adapters of it, in a thread of its own."""

    def __init__(self, base: BaseModel, limits: SamplerLimits | None = None) -> None:
        self.counts = SamplerCounts()
        self._base = base
        self._limits = limits or SamplerLimits()
        self._outbox = Outbox()
        cached_attention.install(base.hf)
        self._changed = threading.Condition()
        self._inbox: list[Job] = []  # guarded by _changed, as is _closing
        self._closing = False
        # Everything below belongs to the thread.
        self._generating = FairQueue()
        self._scoring = FairQueue()
        self._scoring_first = False
        self._long: LongPrompt | None = None
        self._long_rested = False
        self._in_hand: list[Prefill] = []
        self._rows = RunningRows(self._limits)
        self._decode_owed = 0.0
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    def submit(
        self, request: SamplingRequest, adapter: Adapter | None = None
    ) -> Future[SamplingResult]:
        """Queue a request; its future can be cancelled at any time before it is done.

        Raises:
            UserError: the request can't be carried out (at once, not through the future).
            RuntimeError: the sampler is closed.
        """
        check_request(self._base, request)
        job = Job(self._base, request, adapter, self._outbox)
        with self._changed:
            if self._closing:
                raise RuntimeError("the sampler is closed")
            self._inbox.append(job)
            self.counts.requests += 1
            self._changed.notify()
        return job.future

    def cancel(self, future: Future[SamplingResult]) -> bool:
        """Stop working on a request; False if it is already done."""
        return future.cancel()

    def close(self) -> None:
        """Cancel what is running or queued and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        self._outbox.close()

    # -- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        with torch.inference_mode():
            while self._collect():
                try:
                    self._turn()
                except Exception as error:
                    # A defect of ours: nobody may wait for ever because of it.
                    self._fail_everything(error)
            self._fail_everything(None)

    def _collect(self) -> bool:
        """Take new requests, waiting for one if there is nothing to do; False to end."""
        with self._changed:
            if not self._inbox and not self._busy():
                self._rows.release()
                self._changed.wait_for(lambda: self._inbox or self._closing)
                # Requests of one client come within milliseconds of each other; a pass costs
                # tens. Waiting for the flock to land saves a pass for its first bird.
                seen, deadline = 0, time.monotonic() + 0.01
                while seen != len(self._inbox) and time.monotonic() < deadline:
                    seen = len(self._inbox)
                    self._changed.wait(0.002)
            arrived, self._inbox = self._inbox, []
            closing = self._closing
        for job in arrived:
            work = Prefill(job, job.request.tokens, job.rows)
            (self._generating if work.generates else self._scoring).push(work)
        return not closing

    def _busy(self) -> bool:
        return bool(
            self._generating.peek()
            or self._scoring.peek()
            or self._long
            or self._rows.waiting
            or self._rows.active
        )

    def _turn(self) -> None:
        """One prompt pass if it is its turn, then one decoding step."""
        started = time.monotonic()
        if self._decode_owed <= 0 or not self._rows.active:
            if self._prefill():
                self._decode_owed = (time.monotonic() - started) * self._limits.decode_share
            started = time.monotonic()
        for row in self._rows.admit():
            tokens = [*row.job.request.tokens, *row.tokens]
            self._generating.push(Prefill(row.job, tokens, [row], fresh=False), front=True)
            self.counts.set_back += 1
        self.counts.most_rows = max(self.counts.most_rows, self._rows.active)
        for group in self._rows.groups():
            self._decode(group)
        self._decode_owed -= time.monotonic() - started

    # -- prompts ------------------------------------------------------------------------------

    def _prefill(self) -> bool:
        """Run some queued prompts; False if there is none that could run now."""
        if self._long is not None and self._long.work.job.over:
            self._long = None
        # A long prompt and the short ones behind it take turns.
        if self._long is not None and self._long_rested:
            self._advance_long(self._long)
            return True
        works = self._next_prompts()
        self._long_rested = True
        if not works:
            if self._long is None:
                return False
            self._advance_long(self._long)
            return True
        for group in similar_lengths(works, mix=self._base.supports_mixed_batches):
            self._run_prompts(group)
        self._in_hand = []
        return True

    def _next_prompts(self) -> list[Prefill]:
        """Choose prompts for the next turn; a long one becomes :attr:`_long` instead."""
        limits = self._limits
        budget = limits.busy_tokens if self._rows.active else limits.idle_tokens
        chosen: list[Prefill] = []
        used = 0
        queues = [self._generating, self._scoring]
        self._scoring_first = not self._scoring_first
        for queue in reversed(queues) if self._scoring_first else queues:
            free = self._rows.free
            while (work := queue.peek()) is not None:
                if queue is self._generating and (free <= 0 or not self._fits(work, chosen)):
                    break
                if len(work.tokens) > limits.long_prompt:
                    if self._long is None:
                        self._long = LongPrompt(queue.pop())
                        self._long_rested = False
                        continue
                    break
                if chosen and used + len(work.tokens) > budget:
                    break
                chosen.append(queue.pop())
                self._in_hand = chosen
                used += len(work.tokens)
                free -= len(work.rows)
        return chosen

    def _fits(self, work: Prefill, chosen: Sequence[Prefill]) -> bool:
        """Whether the running batch has room for one more prompt's rows."""
        if not chosen and not self._rows.active and not self._rows.waiting:
            return True  # alone, it may exceed the budget
        both = (work, *chosen)
        tokens = sum(len(other.tokens) * len(other.rows) for other in both)
        return self._rows.has_room(tokens, sum(len(other.rows) for other in both))

    def _run_prompts(self, works: list[Prefill]) -> None:
        try:
            logits, prompts = run_prompts(self._base, works)
        except Exception as error:
            if len(works) == 1:
                works[0].job.fail(error)
                return
            for work in works:  # one of them spoils the pass: find out which
                self._run_prompts([work])
            return
        self.counts.prompt_passes += 1
        self.counts.prompt_tokens += sum(len(work.tokens) for work in works)
        for index, work in enumerate(works):
            if not work.job.over:
                self._first_tokens(work, logits[index], prompts[index])

    def _advance_long(self, long: LongPrompt) -> None:
        self._long_rested = False
        done_before = long.done
        try:
            outcome = long.advance(self._base, self._limits.busy_tokens)
        except Exception as error:
            self._long = None
            long.work.job.fail(error)
            return
        self.counts.prompt_passes += 1
        self.counts.prompt_tokens += long.done - done_before
        if outcome is not None:
            logits, prompt = outcome
            self._first_tokens(long.work, logits[0], prompt)
            self._long = None

    def _first_tokens(self, work: Prefill, logits: Tensor, prompt: PromptKV | None) -> None:
        """Choose the token behind the prompt for each of the prompt's rows."""
        if work.scores is not None and not work.scores.finite():
            work.job.fail(_not_finite(work.job))
            return
        for begin in range(0, len(work.rows), 64):
            rows = work.rows[begin : begin + 64]
            chooser = Chooser([row.rule for row in rows])
            choices = _choose(chooser, logits.expand(len(rows), -1).clone(), rows)
            ended = self._accept(rows, choices)
            if work.job.over:
                return
            if prompt is not None:
                for row, end in zip(rows, ended, strict=True):
                    if not end:
                        self._rows.add(row, prompt)

    # -- decoding -----------------------------------------------------------------------------

    def _decode(self, group: RowGroup) -> None:
        """One token more for every row of the group."""
        self._rows.tidy(group)
        if not group.rows:
            return
        rows = list(group.rows)
        logits = self._step(group)
        choices = _choose(group.chooser, logits, rows)
        for row in rows:
            row.length += 1
        ended = self._accept(rows, choices)
        for index in reversed(range(len(rows))):
            if ended[index] or rows[index].job.over:
                group.leave(index, dirty=math.isnan(float(choices.logprobs[index])))

    def _step(self, group: RowGroup) -> Tensor:
        spans = [(0, len(group.rows))]
        if not self._base.supports_mixed_batches:
            spans = group.segments()
        try:
            parts = [group.step(self._base, start, end) for start, end in spans]
            self.counts.decode_passes += len(spans)
        except Exception:
            parts = [self._step_alone(group, index) for index in range(len(group.rows))]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _step_alone(self, group: RowGroup, index: int) -> Tensor:
        """One row's step after the common pass failed; if it fails again, so does its request."""
        self.counts.decode_passes += 1
        try:
            return group.step(self._base, index, index + 1)
        except Exception as error:
            group.rows[index].job.fail(error)
            return torch.zeros(1, self._base.vocab_size)

    def _accept(self, rows: Sequence[Row], choices: Choices) -> list[bool]:
        """Hand each row its token; True for a row that ended."""
        tokens, logprobs = choices.tokens.tolist(), choices.logprobs.tolist()
        tops = None
        if choices.top_ids is not None and choices.top_logprobs is not None:
            tops = (choices.top_ids.numpy(), choices.top_logprobs.numpy())
        ended = []
        for index, row in enumerate(rows):
            if row.job.over:
                ended.append(True)
                continue
            if not math.isfinite(logprobs[index]):
                row.job.fail(_not_finite(row.job))
                ended.append(True)
                continue
            top = (tops[0][index], tops[1][index]) if tops else None
            end = row.accept(tokens[index], logprobs[index], top)
            self.counts.sampled_tokens += 1
            ended.append(end)
            if end:
                row.job.row_finished()
        return ended

    def _fail_everything(self, error: Exception | None) -> None:
        """Fail every request in the thread's hands with ``error``, or cancel it."""
        works = [*self._generating.clear(), *self._scoring.clear()]
        jobs = [*(work.job for work in (*works, *self._in_hand)), *self._rows.clear()]
        if self._long is not None:
            jobs.append(self._long.work.job)
        self._long = None
        self._in_hand = []
        if error is None:
            with self._changed:
                jobs.extend(self._inbox)
                self._inbox = []
        for job in jobs:
            if error is None:
                job.cancel()
            else:
                job.fail(error)


def _choose(chooser: Chooser, logits: Tensor, rows: Sequence[Row]) -> Choices:
    top = max(row.top for row in rows)
    return chooser.choose(logits, [row.next_uniform() for row in rows], top)


def _not_finite(job: Job) -> UserError:
    whose = "base model" if job.adapter is None else "adapter"
    return UserError(
        f"the model gave NaN or infinity instead of logprobs: the {whose}'s weights are broken"
        " (a training run that diverged? sample from an earlier checkpoint)"
    )
