"""Replies of several models to the same prompts, for people to look at. Grading is elsewhere."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkerlab.evaluation import attempts
from tinkerlab.evaluation.attempts import Reply, Sampling
from tinkerlab.evaluation.clients import open_clients, require_same_base
from tinkerlab.evaluation.side_by_side_columns import BASE
from tinkerlab.evaluation.side_by_side_prompts import message_text, rendered
from tinkerlab.grading.types import Attempt, Grade
from tinkerlab.tasks import Task

if TYPE_CHECKING:
    import tinker

# A reply loops where some run of so many words stands in it so often.
LOOP_WORDS, LOOP_TIMES = 8, 3
NOTED_SHARE = 0.1  # of the replies; a rarer fault is left to the table


@dataclass(frozen=True)
class Comparison:
    """What was asked, of whom, and what came back.

    Attributes:
        models: column name -> base model or sampler path, the base model first.
        replies: column name -> for each prompt, its sampled replies.
    """

    tasks: Sequence[Task]
    models: Mapping[str, str]
    renderer: str
    sampling: Sampling
    replies: Mapping[str, Sequence[Sequence[Reply]]]
    system_prompt: str | None = None

    @property
    def base_model(self) -> str:
        return self.models[BASE]

    def same_as_base(self, name: str, index: int) -> bool:
        """Whether a checkpoint's replies to one prompt are the base model's, to the letter."""
        mine, base = self.replies[name][index], self.replies[BASE][index]
        return name != BASE and [r.text for r in mine] == [r.text for r in base]

    def facts(self, name: str) -> dict[str, Any]:
        """What should be known of a column before it is read; shares are between 0 and 1.

        ``same_as_base`` is the share of prompts with the base model's very replies, None in its
        own column; ``matches_reference`` the share of replies, of the prompts that have a
        reference, that equal it (``equals``), None without references. A reply of nothing but
        thinking is empty.
        """
        flat = [reply for found in self.replies[name] for reply in found]
        equal = [
            equals(reply, task.answer)
            for task, found in zip(self.tasks, self.replies[name], strict=True)
            for reply in found
            if task.answer is not None
        ]
        same = [self.same_as_base(name, index) for index in range(len(self.tasks))]
        return {
            "replies": len(flat),
            "mean_tokens": sum(reply.tokens for reply in flat) / len(flat),
            "cut": _share([reply.truncated for reply in flat]),
            "empty": _share([not _plain(reply.text) for reply in flat]),
            "looping": _share([loops(reply.text) for reply in flat]),
            "same_as_base": None if name == BASE else _share(same),
            "matches_reference": _share(equal) if equal else None,
        }

    def document(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {
            "base_model": self.base_model,
            "models": dict(self.models),
            "renderer": self.renderer,
            "system_prompt": self.system_prompt,
            "sampling": asdict(self.sampling),
            "facts": {name: self.facts(name) for name in self.models},
            "warnings": self.warnings(),
            "prompts": [
                {
                    "place": task.place,
                    "messages": [dict(message) for message in task.prompt],
                    "reference": task.answer,
                    "replies": {
                        name: [asdict(reply) for reply in self.replies[name][index]]
                        for name in self.models
                    },
                }
                for index, task in enumerate(self.tasks)
            ],
        }

    def warnings(self) -> list[str]:
        """What a reader must not overlook."""
        told = []
        faults = {
            "cut": f"cut off at {self.sampling.max_tokens} tokens; raise --max-tokens",
            "empty": "empty",
            "looping": "going round in a loop",
        }
        for name in self.models:
            facts = self.facts(name)
            if facts["same_as_base"] == 1:
                told.append(
                    f"NOTHING CHANGED: {name} gives the base model's very replies to every prompt."
                    " Is it the right checkpoint? Did its training loss fall?"
                )
            for key, what in faults.items():
                if facts[key] > NOTED_SHARE:
                    told.append(f"{name}: {facts[key]:.0%} of the replies are {what}")
        return told


def equals(reply: Reply, reference: Any) -> bool:
    """Whether a reply is the reference, white space and thinking aside. No grade: see
    ``eval_offline.py`` for those.
    """
    return _plain(reply.text) == _plain(str(reference))


def loops(text: str) -> bool:
    """Whether some run of eight words stands in ``text`` three times or more.

    Where a text is written without spaces, its letters count as words.
    """
    words: Sequence[str] = text.lower().split()
    if len(text) > 30 * len(words):
        words = text
    seen: dict[tuple[str, ...], int] = {}
    for start in range(len(words) - LOOP_WORDS + 1):
        run = tuple(words[start : start + LOOP_WORDS])
        seen[run] = seen.get(run, 0) + 1
    return max(seen.values(), default=0) >= LOOP_TIMES


def compare(
    tasks: Sequence[Task],
    base_model: str | None,
    checkpoints: Mapping[str, str],
    sampling: Sampling,
    *,
    renderer: str = "auto",
    system_prompt: str | None = None,
    in_flight: int = attempts.IN_FLIGHT,
    say: Callable[[str], None] = lambda note: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Comparison:
    """Ask every model every prompt; all requests are under way together, up to ``in_flight``.

    Args:
        base_model: None for the one that the first checkpoint was trained on.
        checkpoints: column name -> sampler path.
        say: takes warnings about the renderer.
        progress: called with (requests answered, requests in total).

    Raises:
        InputError: an unusable model or service; a checkpoint of another base; a request that
            the service refuses.
        CheckFailed: the service failed.
    """
    from tinkerlab.data import load_tokenizer, resolve_renderer

    models, clients = _open(base_model, checkpoints)
    tokenizer = load_tokenizer(models[BASE])
    resolved = resolve_renderer(models[BASE], tokenizer, renderer)
    for warning in resolved.warnings:
        say(f"warning: {warning}")
    sent = [rendered(task, resolved.renderer, system_prompt) for task in tasks]
    items = attempts.make_items(sent, resolved.renderer, sampling)
    replies = _ask(clients, items, resolved.renderer, tokenizer, sampling, in_flight, progress)
    return Comparison(tasks, models, resolved.name, sampling, replies, system_prompt)


def _open(
    base_model: str | None, checkpoints: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, tinker.SamplingClient]]:
    """The models and a client of each, by column name, the base model first."""
    purpose = "checkpoint_compare.py"
    if base_model is None:
        clients = open_clients(checkpoints, purpose)
        base_model = next(iter(clients.values())).get_base_model()
        clients = {**open_clients({BASE: base_model}, purpose), **clients}
    else:
        clients = open_clients({BASE: base_model, **checkpoints}, purpose)
    for name, path in checkpoints.items():
        require_same_base(clients[BASE], clients[name], base_model, path)
    return {BASE: base_model, **checkpoints}, clients


def _ask(
    clients: Mapping[str, tinker.SamplingClient],
    items: Sequence[attempts.Item],
    renderer: Any,
    tokenizer: Any,
    sampling: Sampling,
    in_flight: int,
    progress: Callable[[int, int], None],
) -> dict[str, list[list[Reply]]]:
    """Column name -> for each prompt its replies.

    Raises:
        InputError, CheckFailed: name the model and the prompt that failed.
    """

    told = 0

    def tell(sampled: int, graded: int, total: int) -> None:
        nonlocal told
        if sampled > told:  # grading tells, too
            told = sampled
            progress(sampled, total)

    with tempfile.TemporaryDirectory() as scratch:
        log = attempts.AttemptLog(Path(scratch) / "replies.jsonl")
        with contextlib.closing(log), attempts.failures_told("try again"):
            found = attempts.run(
                clients,
                items,
                _Unread(),
                _Unread.name,
                log,
                renderer=renderer,
                tokenizer=tokenizer,
                sampling=sampling,
                in_flight=in_flight,
                progress=tell,
                as_text=_as_text,
            )
    return {name: [item.replies for item in found[name]] for name in clients}


class _Unread:
    """A grader that grades nothing: these replies are for people."""

    name = "unread"

    def grade(self, attempts: Sequence[Attempt]) -> list[Grade]:
        return [Grade(0.0) for _ in attempts]

    def close(self) -> None:
        """Nothing was started."""


def _as_text(renderer: Any, tokenizer: Any, tokens: Sequence[int]) -> str:
    """A reply with its thinking and tool calls, which a grader does not want and a reader does."""
    message = None
    with contextlib.suppress(Exception):  # parsers raise what they like on a cut-off tool call
        message, _ = renderer.parse_response(list(tokens))
    if message is None:
        return str(tokenizer.decode(list(tokens), skip_special_tokens=True)).strip()
    return message_text(message)


def _plain(text: str) -> str:
    return " ".join(re.sub(r"<think>.*?</think>", "", text, flags=re.DOTALL).split())


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.0
