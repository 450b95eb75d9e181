"""The prompts of a distillation run, and how they are rendered; no answers are needed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from tinkerlab.cli import say
from tinkerlab.errors import InputError
from tinkerlab.grading.types import Attempt, Grade
from tinkerlab.training.batches import BatchPlan
from tinkerlab.training.distill.config import DistillConfig
from tinkerlab.training.rl.data import RLData

if TYPE_CHECKING:
    from tinkerlab.tasks import Task


class NoReward:
    """A grader that grades nothing: the teacher is the only judge."""

    name = "none"

    def grade(self, attempts: Sequence[Attempt]) -> list[Grade]:
        return [Grade(0.0) for _ in attempts]

    def close(self) -> None:
        return None


@dataclass(frozen=True)
class Source:
    """The prompts of one dataset, all of which have one teacher; ``plan`` picks a step's."""

    name: str
    train: Sequence[Task]
    held_out: Sequence[Task]
    plan: BatchPlan


@dataclass(frozen=True)
class DistillData:
    """Prompts by dataset, in the order of the config's teachers, and what renders them."""

    sources: Sequence[Source]
    rendering: RLData

    def batch(self, step: int) -> list[tuple[int, Task]]:
        """(place of its teacher, prompt) of each group of ``step``, a pure function of it."""
        return [
            (place, source.train[index])
            for place, source in enumerate(self.sources)
            for index in source.plan.indices(step)
        ]

    def held_out(self) -> list[tuple[int, Task]]:
        """(place of its teacher, prompt) of everything held out."""
        return [
            (place, task) for place, source in enumerate(self.sources) for task in source.held_out
        ]

    def train(self) -> list[tuple[int, Task]]:
        """(place of its teacher, prompt) of everything trained on."""
        return [(place, task) for place, source in enumerate(self.sources) for task in source.train]


def prepare(config: DistillConfig) -> DistillData:
    """Load prompts, tokenizer and renderer, and print what was found on stderr.

    Raises:
        InputError: prompts that can't be used, fewer than a batch needs, a prompt that leaves no
            room for a completion, no tokenizer or renderer.
    """
    from tinkerlab.data import load_tokenizer, model_limits, resolve_renderer

    sources = [_load(config, name) for name in config.pairs]
    tokenizer = load_tokenizer(config.base_model)
    resolved = resolve_renderer(config.base_model, tokenizer, config.renderer)
    say(f"renderer {resolved.name}: {resolved.reason}")
    for warning in resolved.warnings:
        say(f"warning: {warning}")
    rendering = RLData(
        train=[],
        held_out=[],
        grader=NoReward(),
        renderer=resolved.renderer,
        renderer_name=resolved.name,
        tokenizer=tokenizer,
        stop=resolved.renderer.get_stop_sequences(),
        system_prompt=config.system_prompt,
    )
    data = DistillData(sources, rendering)
    _require_room(data, config, model_limits(config.base_model).context_length)
    return data


def _load(config: DistillConfig, name: str) -> Source:
    from tinkerlab.tasks import load_tasks

    train = load_tasks(name, "train", config.max_train_tasks, config.seed, say=say)
    held_out = (
        load_tasks(name, "test", config.max_eval_tasks, config.seed, say=say)
        if config.max_eval_tasks
        else []
    )
    if len(train) < config.groups_per_batch:
        raise InputError(
            f"dataset {name}: {len(train)} training prompts, fewer than"
            f" groups_per_batch={config.groups_per_batch}; set it to {max(len(train), 1)} or less"
        )
    say(f"{len(train)} training prompts and {len(held_out)} held-out prompts from {name}")
    plan = BatchPlan(len(train), config.groups_per_batch, config.seed)
    return Source(name, train, held_out, plan)


def _require_room(data: DistillData, config: DistillConfig, context: int | None) -> None:
    if context is None:
        return
    for _, task in [*data.train(), *data.held_out()]:
        length = data.rendering.prompt(task).length
        if length + config.max_tokens > context:
            raise InputError(
                f"{task.place}: the prompt has {length} tokens, and max_tokens={config.max_tokens}"
                f" more do not fit into the context of {context} of {config.base_model}; lower"
                " max_tokens or shorten the prompt"
            )


def fingerprint(tasks: Sequence[tuple[int, Task]]) -> str:
    """Hex SHA-256 of the prompts and their teachers' places, in order."""
    documents = [[place, list(task.prompt)] for place, task in tasks]
    return sha256(json.dumps(documents, sort_keys=True, default=str).encode()).hexdigest()
