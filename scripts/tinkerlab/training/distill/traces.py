"""The teacher's samples that off-policy distillation imitates: taken once, kept with the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkerlab.cli import say
from tinkerlab.errors import InputError
from tinkerlab.runs import jsonl
from tinkerlab.training.distill.config import DistillConfig
from tinkerlab.training.distill.data import DistillData
from tinkerlab.training.rl.rollouts import Sampling, collect, sample_seed, submit

if TYPE_CHECKING:
    import tinker

FILE_NAME = "traces.jsonl"
IN_FLIGHT = 64  # prompts that are being sampled at a time


@dataclass(frozen=True)
class Trace:
    """One sample of a teacher, as tokens."""

    prompt: Sequence[int]
    completion: Sequence[int]

    def datum(self) -> tinker.Datum:
        """The training example; its weights are on the completion and sum to 1."""
        import torch
        from tinker import ModelInput
        from tinker_cookbook.supervised.common import datum_from_model_input_weights

        weights = [0.0] * len(self.prompt) + [1.0] * len(self.completion)
        return datum_from_model_input_weights(
            ModelInput.from_ints([*self.prompt, *self.completion]),
            torch.tensor(weights),
            None,
            reduction="mean",
        )


def sample(
    teachers: Sequence[tinker.SamplingClient], data: DistillData, config: DistillConfig
) -> list[dict[str, Any]]:
    """``group_size`` samples of each training prompt by its teacher, as rows of traces.jsonl.

    Raises:
        tinker.TinkerError: the service refused a request.
    """
    rows: list[dict[str, Any]] = []
    how = Sampling(config.group_size, config.max_tokens, config.temperature)
    for place, source in enumerate(data.sources):
        for first in range(0, len(source.train), IN_FLIGHT):
            tasks = source.train[first : first + IN_FLIGHT]
            seeds = [
                sample_seed(config.seed, "trace", place, first + index)
                for index in range(len(tasks))
            ]
            submitted = submit(teachers[place], data.rendering, tasks, how, seeds=seeds)
            for group in collect(submitted, data.rendering):
                messages = data.rendering.messages(group.task)
                rows += [
                    {
                        "source": place,
                        "messages": [*messages, {"role": "assistant", "content": made.text}],
                        "prompt_tokens": group.prompt.to_ints(),
                        "completion_tokens": list(made.tokens),
                        "truncated": made.truncated,
                    }
                    for made in group.completions
                ]
            say(f"traces: {min(first + IN_FLIGHT, len(source.train))} prompts of {source.name}")
    cut = sum(row["truncated"] for row in rows)
    if cut:
        say(f"warning: {cut} of {len(rows)} traces reach max_tokens={config.max_tokens}")
    return rows


def read(folder: Path, data: DistillData, config: DistillConfig) -> list[list[Trace]]:
    """The traces of each source, in the order of its prompts.

    Raises:
        InputError: the file is gone or damaged.
    """
    file = folder / FILE_NAME
    found: list[list[Trace]] = [[] for _ in data.sources]
    try:
        for row in jsonl.read(file):
            found[row["source"]].append(Trace(row["prompt_tokens"], row["completion_tokens"]))
    except (KeyError, IndexError, TypeError):
        raise InputError(f"{file}: a row is no trace; begin again with a new run_name") from None
    wanted = [len(source.train) * config.group_size for source in data.sources]
    if [len(traces) for traces in found] != wanted:
        raise InputError(
            f"{file}: holds {sum(map(len, found))} traces of {sum(wanted)}; it is not as this run"
            " left it: restore it, or begin again with a new run_name"
        )
    return found
