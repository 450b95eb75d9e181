"""Replies of several models to the same prompts, for people to look at. Grading is elsewhere."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkerlab.errors import CheckFailed, InputError
from tinkerlab.evaluation import attempts
from tinkerlab.evaluation.attempts import Graded, Sampling
from tinkerlab.evaluation.clients import open_clients, require_same_base
from tinkerlab.evaluation.sft import check_checkpoint_path
from tinkerlab.grading.types import Attempt, Grade
from tinkerlab.runs import checkpoints, jsonl
from tinkerlab.tasks import Task

if TYPE_CHECKING:
    import tinker

BASE = "base"
_LOOP_WORDS = 8
_LOOP_TIMES = 3


@dataclass(frozen=True)
class Comparison:
    """What was asked, of whom, and what came back.

    Attributes:
        models: column name -> base model or sampler path; the base model first, if it is there.
        replies: column name -> for each prompt, its sampled replies.
    """

    tasks: Sequence[Task]
    models: Mapping[str, str]
    base_model: str
    renderer: str
    sampling: Sampling
    replies: Mapping[str, Sequence[Sequence[attempts.Reply]]]

    def facts(self, name: str) -> dict[str, Any]:
        """What should be known of a column before it is read.

        ``same_as_base`` is the share of prompts with the base model's very replies (None in the
        base's own column or without one); ``matches_reference`` the share of prompts, of those
        that have a reference, whose first reply equals it, white space aside.
        """
        mine = self.replies[name]
        flat = [reply for found in mine for reply in found]
        known = [(t, r) for t, r in zip(self.tasks, mine, strict=True) if t.answer is not None]
        equal = [_plain(r[0].text) == _plain(str(t.answer)) for t, r in known]
        same = None
        if name != BASE and BASE in self.replies:
            pairs = zip(self.replies[BASE], mine, strict=True)
            same = _share([_texts(base) == _texts(own) for base, own in pairs])
        return {
            "replies": len(flat),
            "mean_tokens": sum(reply.tokens for reply in flat) / len(flat),
            "cut": _share([reply.truncated for reply in flat]),
            "empty": _share([not reply.text for reply in flat]),
            "looping": _share([loops(reply.text) for reply in flat]),
            "same_as_base": same,
            "matches_reference": _share(equal) if equal else None,
        }

    def document(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {
            "base_model": self.base_model,
            "renderer": self.renderer,
            "models": dict(self.models),
            "sampling": asdict(self.sampling),
            "facts": {name: self.facts(name) for name in self.models},
            "prompts": [
                {
                    "prompt": [dict(message) for message in task.prompt],
                    "reference": task.answer,
                    "place": task.place,
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
        for name in self.models:
            facts = self.facts(name)
            if facts["same_as_base"] == 1.0:
                told.append(
                    f"{name} gives the base model's very replies to every prompt: it changed"
                    " nothing here. Is it the right checkpoint, and was it trained?"
                )
            if facts["cut"] > 0.1:
                told.append(
                    f"{name}: {facts['cut']:.0%} of the replies were cut at max_tokens"
                    f"={self.sampling.max_tokens}; raise --max-tokens"
                )
            if facts["looping"] > 0.1:
                told.append(f"{name}: {facts['looping']:.0%} of the replies repeat themselves")
            if facts["empty"] > 0.1:
                told.append(f"{name}: {facts['empty']:.0%} of the replies are empty")
        return told


def loops(text: str) -> bool:
    """Whether some run of eight words stands in ``text`` three times or more."""
    words = text.lower().split()
    seen: dict[tuple[str, ...], int] = {}
    for start in range(len(words) - _LOOP_WORDS + 1):
        run = tuple(words[start : start + _LOOP_WORDS])
        seen[run] = seen.get(run, 0) + 1
        if seen[run] >= _LOOP_TIMES:
            return True
    return False


def run_checkpoints(folder: Path, *, every: bool) -> dict[str, str]:
    """Column name -> sampler path of a run's checkpoints: all in training order, or the newest.

    Raises:
        InputError: none of them can be sampled from.
    """
    rows = [row for row in checkpoints.read_rows(folder) if row.get("sampler_path")]
    if not rows:
        raise InputError(
            f"--run {folder}: no checkpoint to sample from in {checkpoints.FILE_NAME}; let the run"
            " finish, or name one with --checkpoint"
        )
    chosen = rows if every else rows[-1:]
    return {str(row.get("name") or row["sampler_path"]): row["sampler_path"] for row in chosen}


def held_out_tasks(folder: Path) -> list[Task]:
    """The prompts that a run held out, as its trainer left them.

    Raises:
        InputError: the run held none out, or left them in a form of its own.
    """
    from tinkerlab.data.messages import RowError
    from tinkerlab.tasks.rows import task_of

    file = folder / "held_out.jsonl"
    rows = jsonl.read(file) if file.is_file() else []
    if not rows:
        raise InputError(
            f"--run {folder} held no rows out; give prompts with --prompts or --prompt"
        )
    found = []
    for number, row in enumerate(rows, start=1):
        if "chosen" in row:  # a preference pair: the better reply is the reference
            row = {"messages": _conversation(row)}
        try:
            found.append(task_of(row, f"{file.name} line {number}"))
        except RowError as error:
            raise InputError(f"{file}:{number}: {error}; give prompts with --prompts") from None
    return found


def _conversation(pair: Mapping[str, Any]) -> list[dict[str, Any]]:
    def messages(value: Any, role: str) -> list[dict[str, Any]]:
        return [{"role": role, "content": value}] if isinstance(value, str) else list(value)

    return [*messages(pair.get("prompt") or [], "user"), *messages(pair["chosen"], "assistant")]


def compare(
    tasks: Sequence[Task],
    base_model: str | None,
    paths: Mapping[str, str],
    sampling: Sampling,
    *,
    renderer: str = "auto",
    system_prompt: str | None = None,
    in_flight: int = attempts.IN_FLIGHT,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Comparison:
    """Ask every model every prompt; all requests are under way together, up to ``in_flight``.

    Args:
        base_model: asked too, unless None.
        paths: column name -> sampler path.

    Raises:
        InputError: an unusable path, model or service; checkpoints of different bases; a
            request that the service refuses.
        CheckFailed: the service failed.
    """
    import tinker

    from tinkerlab import service
    from tinkerlab.data import load_tokenizer, resolve_renderer

    for path in paths.values():
        check_checkpoint_path(path)
    models = {**({BASE: base_model} if base_model else {}), **paths}
    clients = open_clients(models, "checkpoint_compare.py")
    model = _one_base(clients, models)
    tokenizer = load_tokenizer(model)
    resolved = resolve_renderer(model, tokenizer, renderer)
    items = attempts.make_items(tasks, resolved.renderer, sampling, system_prompt)
    with tempfile.TemporaryDirectory() as scratch:
        log = attempts.AttemptLog(Path(scratch) / "replies.jsonl")
        try:
            found = attempts.run(
                clients,
                items,
                _Unread(),
                "unread",
                log,
                renderer=resolved.renderer,
                tokenizer=tokenizer,
                sampling=sampling,
                in_flight=in_flight,
                progress=lambda sampled, graded, total: progress(sampled, total),
            )
        except (tinker.BadRequestError, tinker.UnprocessableEntityError) as error:
            raise InputError(f"the service refused a request: {service.brief(error)}") from None
        except service.service_errors() as error:
            raise CheckFailed(f"the service failed: {service.brief(error)}; try again") from None
        finally:
            log.close()
    replies = {name: [_replies(item) for item in found[name]] for name in models}
    return Comparison(tasks, models, model, resolved.name, sampling, replies)


def _one_base(clients: Mapping[str, tinker.SamplingClient], models: Mapping[str, str]) -> str:
    """The base model that all columns share.

    Raises:
        InputError: they do not.
    """
    first, *others = clients
    for name in others:
        require_same_base(clients[first], clients[name], models[first], models[name])
    return clients[first].get_base_model()


class _Unread:
    """A grader that grades nothing: these replies are for people."""

    name = "unread"

    def grade(self, attempts: Sequence[Attempt]) -> list[Grade]:
        return [Grade(0.0) for _ in attempts]

    def close(self) -> None:
        """Nothing was started."""


def _replies(item: Graded) -> list[attempts.Reply]:
    return item.replies


def _texts(replies: Sequence[attempts.Reply]) -> list[str]:
    return [reply.text for reply in replies]


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.0
