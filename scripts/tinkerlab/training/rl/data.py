"""What an RL run works on: tasks, the grader of their answers, and how a prompt is rendered."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkerlab.cli import say
from tinkerlab.errors import InputError
from tinkerlab.training.rl.config import RLConfig

if TYPE_CHECKING:
    import tinker

    from tinkerlab.grading.types import Grader
    from tinkerlab.tasks import Task


@dataclass(frozen=True)
class RLData:
    """Tasks to train on and to evaluate on, disjoint, and what reads and writes them.

    Attributes:
        stop: what ends a completion, for ``SamplingParams.stop``.
        stops_of_its_own: it holds more than the renderer's, so that a completion may end well
            where the renderer sees no end of a turn.
    """

    train: Sequence[Task]
    held_out: Sequence[Task]
    grader: Grader
    renderer: Any
    renderer_name: str
    tokenizer: Any
    stop: list[str] | list[int]
    stops_of_its_own: bool = False
    system_prompt: str | None = None
    zero_reward_on_limit: bool = False

    def messages(self, task: Task) -> list[dict[str, Any]]:
        """The prompt's messages; a system message of the task's own wins over the config's."""
        messages = [dict(message) for message in task.prompt]
        if self.system_prompt and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": self.system_prompt})
        return messages

    def prompt(self, task: Task) -> tinker.ModelInput:
        """The tokens that a completion continues."""
        return self.renderer.build_generation_prompt(self.messages(task))


def prepare(config: RLConfig) -> RLData:
    """Load tasks, grader, tokenizer and renderer, and print what was found on stderr.

    Raises:
        InputError: tasks or a grader that can't be used, fewer tasks than a batch needs, a
            prompt that leaves no room for a completion, no tokenizer or renderer.
    """
    from tinkerlab.data import load_tokenizer, model_limits, resolve_renderer
    from tinkerlab.grading import load_grader, require_usable

    train, held_out = load_both(config)
    if len(train) < config.groups_per_batch:
        raise InputError(
            f"dataset {config.dataset}: {len(train)} training tasks, fewer than"
            f" groups_per_batch={config.groups_per_batch}; set it to {max(len(train), 1)} or less"
        )
    say(f"{len(train)} training tasks and {len(held_out)} held-out tasks from {config.dataset}")
    tokenizer = load_tokenizer(config.base_model)
    resolved = resolve_renderer(config.base_model, tokenizer, config.renderer)
    say(f"renderer {resolved.name}: {resolved.reason}")
    for warning in resolved.warnings:
        say(f"warning: {warning}")
    grader = load_grader(
        config.reward, failure_score=config.failure_reward, timeout=config.grader_timeout
    )
    data = RLData(
        train=train,
        held_out=held_out,
        grader=grader,
        renderer=resolved.renderer,
        renderer_name=resolved.name,
        tokenizer=tokenizer,
        stop=stop_sequences(resolved.renderer, tokenizer, config.stop),
        stops_of_its_own=bool(config.stop),
        system_prompt=config.system_prompt,
        zero_reward_on_limit=config.zero_reward_on_limit,
    )
    try:
        require_usable(grader, [*train, *held_out])
        require_room(data, config, model_limits(config.base_model).context_length)
    except InputError:
        grader.close()
        raise
    return data


def load_both(config: RLConfig) -> tuple[list[Task], list[Task]]:
    """Tasks to train on and held-out tasks, which share no prompt.

    Raises:
        InputError: a source that can't be used.
    """
    from tinkerlab.data.splits import MAX_TRAIN_ROWS
    from tinkerlab.tasks import load_tasks, without_shared

    most, seed = config.max_train_tasks, config.seed
    if config.max_eval_tasks and config.eval_dataset:
        held_out = load_tasks(config.eval_dataset, "all", config.max_eval_tasks, seed, say=say)
        train = load_tasks(config.dataset, "all", most or MAX_TRAIN_ROWS, seed, say=say)
        return without_shared(train, held_out, say), held_out
    train = load_tasks(config.dataset, "train", most, seed, say=say)
    if not config.max_eval_tasks:
        return train, []
    return train, load_tasks(config.dataset, "test", config.max_eval_tasks, seed, say=say)


def require_room(data: RLData, config: RLConfig, context: int | None) -> None:
    """Refuse prompts after which ``max_tokens`` do not fit into the context.

    Raises:
        InputError: names the first such task.
    """
    if context is None:
        return
    used = config.groups_per_batch * config.num_steps
    for task in [*data.train[:used], *data.held_out]:
        length = data.prompt(task).length
        if length + config.max_tokens > context:
            raise InputError(
                f"{task.place}: the prompt has {length} tokens, and max_tokens={config.max_tokens}"
                f" more do not fit into the context of {context} of {config.base_model}; lower"
                " max_tokens or shorten the prompt"
            )


def stop_sequences(
    renderer: Any, tokenizer: Any, extra: Sequence[str] | None
) -> list[str] | list[int]:
    """The renderer's stop sequences, and the config's besides.

    A request takes texts or tokens, not both: with texts of the user's, the renderer's tokens
    are given as the texts that they stand for.
    """
    own = renderer.get_stop_sequences()
    if not extra:
        return own
    texts = [text if isinstance(text, str) else tokenizer.decode([text]) for text in own]
    return [*texts, *extra]


def fingerprint(tasks: Sequence[Task]) -> str:
    """Hex SHA-256 of prompts and answers in order: the same tasks, wherever they come from."""
    digest = hashlib.sha256()
    for task in tasks:
        document = [list(task.prompt), task.answer]
        digest.update(json.dumps(document, sort_keys=True, default=str).encode())
        digest.update(b"\n")
    return digest.hexdigest()


def reward_fingerprint(spec: str) -> str | None:
    """Hex SHA-256 of the file in ``FILE.py:function`` or ``json_schema:FILE``; else None."""
    kind, _, argument = spec.partition(":")
    file, _, _ = spec.rpartition(":")
    if kind == "json_schema":
        file = argument
    elif not file.endswith(".py"):
        return None
    return hashlib.sha256(Path(file).expanduser().read_bytes()).hexdigest()
