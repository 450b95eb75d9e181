"""Ask the service: sample tokens, then have sampler and trainer score the same tokens.

All requests of one kind are submitted before the first is awaited.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinkerlab.errors import InputError

if TYPE_CHECKING:
    import tinker


@dataclass(frozen=True)
class Sampled:
    """One sampled sequence: prompt and answer tokens, and the answer's logprobs as sampled."""

    prompt: list[int]
    answer: list[int]
    logprobs: list[float]

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt, *self.answer]


def sample(
    client: tinker.SamplingClient,
    prompts: Sequence[list[int]],
    *,
    max_tokens: int,
    temperature: float,
    seed: int,
) -> list[Sampled]:
    """One answer to each prompt.

    Raises:
        InputError: no token came back, or the service gave no logprobs.
    """
    import tinker

    pending = [
        client.sample(
            tinker.ModelInput.from_ints(prompt),
            1,
            tinker.SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed + i),
        )
        for i, prompt in enumerate(prompts)
    ]
    sampled = []
    for prompt, future in zip(prompts, pending, strict=True):
        sequence = future.result().sequences[0]
        if sequence.logprobs is None:
            raise InputError("the service returned no logprobs with its samples")
        if sequence.tokens:
            sampled.append(Sampled(prompt, list(sequence.tokens), list(sequence.logprobs)))
    if not sampled:
        raise InputError("the model sampled no token: give other prompts")
    return sampled


def by_sampler(client: tinker.SamplingClient, sampled: Sequence[Sampled]) -> list[float]:
    """Logprobs of all answer tokens as the sampler scores them in a prompt."""
    import tinker

    pending = [client.compute_logprobs(tinker.ModelInput.from_ints(it.tokens)) for it in sampled]
    scores: list[float] = []
    for it, future in zip(sampled, pending, strict=True):
        # compute_logprobs gives one value a token; the first has none.
        values = future.result()[len(it.prompt) :]
        scores += [float("nan") if value is None else value for value in values]
    return scores


def by_trainer(client: tinker.TrainingClient, sampled: Sequence[Sampled]) -> list[float]:
    """Logprobs of all answer tokens by the trainer's forward pass (no gradient, no step)."""
    import tinker

    data = []
    for it in sampled:
        inputs, targets = it.tokens[:-1], it.tokens[1:]
        weights = [0.0] * (len(it.prompt) - 1) + [1.0] * len(it.answer)
        data.append(
            tinker.Datum(
                model_input=tinker.ModelInput.from_ints(inputs),
                loss_fn_inputs={
                    "target_tokens": tinker.TensorData(
                        data=targets, dtype="int64", shape=[len(targets)]
                    ),
                    "weights": tinker.TensorData(
                        data=weights, dtype="float32", shape=[len(weights)]
                    ),
                },
            )
        )
    outputs = client.forward(data, "cross_entropy").result().loss_fn_outputs
    scores: list[float] = []
    for it, output in zip(sampled, outputs, strict=True):
        scores += [float(x) for x in output["logprobs"].data[len(it.prompt) - 1 :]]
    return scores
