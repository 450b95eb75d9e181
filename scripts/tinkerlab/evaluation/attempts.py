"""Sample replies to tasks from one or more models and grade them, as they come.

Every request of every model is in flight at once, up to a bound; grading runs beside the
sampling, in batches of whatever has arrived. Replies and grades are written to a log as they
come, so that an interrupted evaluation samples nothing twice, and another grader can grade
replies that were already paid for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkerlab.errors import CheckFailed, InputError
from tinkerlab.evaluation import hashing
from tinkerlab.grading.types import Attempt, Grade, Grader
from tinkerlab.runs import jsonl

if TYPE_CHECKING:
    import tinker

    from tinkerlab.tasks import Task

IN_FLIGHT = 256
GRADED_AT_ONCE = 256
BATCH_SECONDS = 0.25

AsText = Callable[[Any, Any, Sequence[int]], str]


@dataclass(frozen=True)
class Sampling:
    """How replies are drawn; two evaluations with the same are comparable.

    Attributes:
        samples: replies per task.
        stop: texts that end a reply, besides the renderer's.
        seed: of the whole evaluation; each task draws with one of its own, made from it. What
            a service does with a seed is its own affair: the rehearsal repeats its samples.
    """

    max_tokens: int = 512
    temperature: float = 0.0
    top_p: float = 1.0
    samples: int = 1
    seed: int = 0
    stop: tuple[str, ...] = ()

    def params(self, index: int, stop: list[str] | list[int]) -> tinker.SamplingParams:
        import tinker

        return tinker.SamplingParams(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=(self.seed * 1_000_003 + index) % 2**31,
            stop=stop,
        )


@dataclass(frozen=True)
class Item:
    """A task, rendered: what is sent, and the key that its replies are filed under."""

    index: int
    task: Task
    tokens: tuple[int, ...]
    key: str


@dataclass(frozen=True)
class Reply:
    """One sampled reply.

    Attributes:
        text: without thinking and end-of-turn tokens.
        truncated: it ended because ``max_tokens`` were used up.
    """

    text: str
    tokens: int
    truncated: bool


@dataclass
class Graded:
    """Every reply to one item by one model, with its grade."""

    replies: list[Reply] = field(default_factory=list)
    grades: list[Grade] = field(default_factory=list)


@contextlib.contextmanager
def failures_told(then: str) -> Iterator[None]:
    """Around ``run``: a failed request in one line, with who was asked what.

    Args:
        then: what was kept, and what to do next.

    Raises:
        InputError: the service refuses a request, such as one over the context window.
        CheckFailed: the service failed.
    """
    import tinker

    from tinkerlab import service

    def told(error: Exception) -> str:
        return "; ".join([service.brief(error), *getattr(error, "__notes__", ())])

    try:
        yield
    except (tinker.BadRequestError, tinker.UnprocessableEntityError) as error:
        raise InputError(f"the service refused a request: {told(error)}") from None
    except (*service.service_errors(), ValueError) as error:
        # The SDK has a bare ValueError for an answer that it can't read; one without the note
        # of a request is a defect of ours.
        if isinstance(error, ValueError) and not hasattr(error, "__notes__"):
            raise
        raise CheckFailed(f"the service failed: {told(error)}; {then}") from None


class AttemptLog:
    """Replies and grades already made, by (model, item) and (model, item, grader).

    Raises:
        InputError: the file holds something else.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._replies: dict[tuple[str, str], list[Reply]] = {}
        self._grades: dict[tuple[str, str, str], list[Grade]] = {}
        jsonl.repair_tail(path)
        for number, row in enumerate(jsonl.read(path), start=1):
            try:
                self._take(row)
            except (KeyError, TypeError) as error:
                raise InputError(
                    f"{path} record {number}: not one of an evaluation ({error}); choose another"
                    " --output, or remove that file to sample again"
                ) from None
        self._file = path.open("ab")

    def _take(self, row: dict[str, Any]) -> None:
        key = (row["model"], row["item"])
        if "replies" in row:
            self._replies[key] = [Reply(**reply) for reply in row["replies"]]
        else:
            self._grades[*key, row["grader"]] = [Grade(**grade) for grade in row["grades"]]

    def replies(self, model: str, item: Item) -> list[Reply] | None:
        return self._replies.get((model, item.key))

    def grades(self, model: str, item: Item, grader: str) -> list[Grade] | None:
        return self._grades.get((model, item.key, grader))

    def add_replies(self, model: str, item: Item, replies: list[Reply]) -> None:
        self._replies[model, item.key] = replies
        self._write(model, item, {"replies": [asdict(reply) for reply in replies]})

    def add_grades(self, model: str, item: Item, grader: str, grades: list[Grade]) -> None:
        self._grades[model, item.key, grader] = grades
        self._write(model, item, {"grader": grader, "grades": [asdict(g) for g in grades]})

    def close(self) -> None:
        self._file.close()

    def _write(self, model: str, item: Item, fields: dict[str, Any]) -> None:
        # Flushed to the system, not to the disk: a killed process loses nothing, and waiting
        # for the disk after each reply would hold up the others.
        self._file.write(json.dumps({"model": model, "item": item.key, **fields}).encode() + b"\n")
        self._file.flush()


def make_items(
    tasks: Sequence[Task],
    renderer: Any,
    sampling: Sampling,
    system_prompt: str | None = None,
) -> list[Item]:
    """Render every task's prompt."""
    items = []
    for index, task in enumerate(tasks):
        messages = [dict(message) for message in task.prompt]
        if system_prompt and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": system_prompt})
        tokens = tuple(renderer.build_generation_prompt(messages).to_ints())
        # The index decides the seed, so it belongs to what a reply depends on.
        key = hashing.value_sha256([index, tokens, asdict(sampling)])
        items.append(Item(index, task, tokens, key))
    return items


def reply_text(renderer: Any, tokenizer: Any, tokens: Sequence[int]) -> str:
    """A reply as text, without thinking and end-of-turn tokens.

    A reply that does not end its turn properly (a base model's end-of-text, a cut-off one) is
    still a reply: it is graded, not thrown away.
    """
    from tinker_cookbook.renderers import get_text_content

    message = None
    with contextlib.suppress(Exception):  # parsers raise what they like on a cut-off tool call
        message, _ = renderer.parse_response(list(tokens))
    if message is None:
        return str(tokenizer.decode(list(tokens), skip_special_tokens=True)).strip()
    return str(get_text_content(message)).strip()


def run(
    clients: Mapping[str, tinker.SamplingClient],
    items: Sequence[Item],
    grader: Grader,
    grader_key: str,
    log: AttemptLog,
    *,
    renderer: Any,
    tokenizer: Any,
    sampling: Sampling,
    in_flight: int = IN_FLIGHT,
    progress: Callable[[int, int, int], None] = lambda sampled, graded, total: None,
    as_text: AsText = reply_text,
) -> dict[str, list[Graded]]:
    """Replies and grades of every model for every item, in item order.

    Args:
        clients: by the name that the log files each model under.
        grader_key: what fixes the grades: another key, and the replies are graded again.
        in_flight: most requests at a time, of all models together; one asks for all samples of
            one item.
        progress: called with (items sampled, items graded, items in total) of all models.
        as_text: what a reply's text is, from (renderer, tokenizer, its tokens).

    Raises:
        Exception: the first failure of a request, with a note on who was asked what.
    """
    parts = (clients, items, grader, grader_key, log, renderer, tokenizer, sampling)
    return asyncio.run(_Run(*parts, progress, as_text).all(in_flight))


class _Run:
    """One call of ``run``."""

    def __init__(
        self,
        clients: Mapping[str, tinker.SamplingClient],
        items: Sequence[Item],
        grader: Grader,
        grader_key: str,
        log: AttemptLog,
        renderer: Any,
        tokenizer: Any,
        sampling: Sampling,
        progress: Callable[[int, int, int], None],
        as_text: AsText,
    ) -> None:
        self.clients = clients
        self.items = items
        self.grader = grader
        self.grader_key = grader_key
        self.log = log
        self.renderer = renderer
        self.tokenizer = tokenizer
        self.sampling = sampling
        self.progress = progress
        self.as_text = as_text
        self.stop = _stop_sequences(renderer, tokenizer, sampling.stop)
        self.total = len(items) * len(clients)
        self.sampled = self.graded = 0
        self.failures: list[Exception] = []
        self.arrived: asyncio.Queue[tuple[str, Item] | None] = asyncio.Queue()
        self.all_arrived = asyncio.Event()

    async def all(self, in_flight: int) -> dict[str, list[Graded]]:
        """Raises the first failure, after the requests that were under way have ended: what
        they bring was paid for, and is kept.
        """
        try:
            async with asyncio.TaskGroup() as everything:
                everything.create_task(self._grade_arrivals())
                await self._sample_all(in_flight)
                self.arrived.put_nowait(None)
                self.all_arrived.set()
        except asyncio.CancelledError:
            self.grader.close()  # an interrupt shall not wait for a batch to be graded
            raise
        if self.failures:
            raise self.failures[0]
        return {
            model: [
                Graded(
                    self.log.replies(model, item) or [],
                    self.log.grades(model, item, self.grader_key) or [],
                )
                for item in self.items
            ]
            for model in self.clients
        }

    async def _sample_all(self, in_flight: int) -> None:
        gate = asyncio.Semaphore(in_flight)
        # Item by item, not model by model: an interruption leaves pairs.
        wanted = [(model, item) for item in self.items for model in self.clients]
        async with asyncio.TaskGroup() as requests:
            for model, item in wanted:
                if self.log.replies(model, item) is not None:
                    self._note_sampled(model, item)
                    continue
                # Waiting here, not in the task, keeps only so many tasks alive.
                await gate.acquire()
                if self.failures:
                    return
                task = requests.create_task(self._sample(model, item))
                task.add_done_callback(lambda _: gate.release())

    async def _sample(self, model: str, item: Item) -> None:
        import tinker

        try:
            response = await self.clients[model].sample(
                prompt=tinker.ModelInput.from_ints(list(item.tokens)),
                num_samples=self.sampling.samples,
                sampling_params=self.sampling.params(item.index, self.stop),
            )
        except Exception as error:  # whatever the SDK raises; told by all()
            error.add_note(f"{model} was asked {item.task.place or f'item {item.index}'}")
            self.failures.append(error)
            return
        replies = [
            Reply(
                text=self.as_text(self.renderer, self.tokenizer, sequence.tokens),
                tokens=len(sequence.tokens),
                truncated=sequence.stop_reason == "length",
            )
            for sequence in response.sequences
        ]
        self.log.add_replies(model, item, replies)
        self._note_sampled(model, item)

    def _note_sampled(self, model: str, item: Item) -> None:
        self.sampled += 1
        self.arrived.put_nowait((model, item))
        self._tell()

    async def _grade_arrivals(self) -> None:
        while (first := await self.arrived.get()) is not None:
            # A batch costs some switching between threads, which the sampling has to wait for
            # too: let arrivals collect, but not once all have arrived.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.all_arrived.wait(), BATCH_SECONDS)
            batch = [first]
            while len(batch) < GRADED_AT_ONCE and not self.arrived.empty():
                pair = self.arrived.get_nowait()
                if pair is None:
                    self.arrived.put_nowait(None)  # for the loop's own condition
                    break
                batch.append(pair)
            if not self.failures:
                try:
                    await self._grade(batch)
                except Exception as error:  # a judge's service; told by all()
                    self.failures.append(error)

    async def _grade(self, pairs: list[tuple[str, Item]]) -> None:
        fresh = [pair for pair in pairs if self.log.grades(*pair, self.grader_key) is None]
        attempts = [
            Attempt(reply.text, item.task.prompt, item.task.answer, item.task.row, item.task.place)
            for model, item in fresh
            for reply in self.log.replies(model, item) or []
        ]
        # Graders wait for processes or services of their own; sampling goes on meanwhile.
        grades = await asyncio.to_thread(self.grader.grade, attempts) if attempts else []
        count = self.sampling.samples
        for place, (model, item) in enumerate(fresh):
            mine = list(grades[place * count : (place + 1) * count])
            self.log.add_grades(model, item, self.grader_key, mine)
        self.graded += len(pairs)
        self._tell()

    def _tell(self) -> None:
        self.progress(self.sampled, self.graded, self.total)


def _stop_sequences(renderer: Any, tokenizer: Any, more: Sequence[str]) -> list[str] | list[int]:
    """The renderer's, and the user's besides; a request takes texts or tokens, not both."""
    own = renderer.get_stop_sequences()
    if not more:
        return own
    return [*(s if isinstance(s, str) else tokenizer.decode([s]) for s in own), *more]
