"""Measure each model, and put the verdicts together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinkerlab import cli, service
from tinkerlab.data import load_tokenizer, resolve_renderer
from tinkerlab.diagnosis.findings import Diagnosis
from tinkerlab.diagnosis.logprob_gap import measure
from tinkerlab.diagnosis.logprob_gap.verdict import Scores, judge
from tinkerlab.errors import InputError

PROMPTS = (
    "What is 15 + 27?",
    "Name three rivers of Europe.",
    "Write one sentence about the sea.",
    "Translate into French: good morning.",
    "Why is the sky blue?",
    "Give me a short list of fruit.",
    "Who wrote Hamlet?",
    "Count from one to ten.",
)


@dataclass(frozen=True)
class Request:
    """What to compare.

    Attributes:
        models: base models.
        prompts: a file of prompts, one a line; None for our own.
        checkpoint: training weights (``tinker://.../weights/...``) of the one model.
        sampler: sampler weights to hold against them; None saves the trainer's own.
    """

    models: Sequence[str]
    prompts: Path | None = None
    checkpoint: str | None = None
    sampler: str | None = None
    tokenizer: str | None = None
    n: int = 8
    max_tokens: int = 32
    temperature: float = 1.0
    rank: int = 8
    seed: int = 0


def check(request: Request) -> Diagnosis:
    """Compare sampler and trainer for every model.

    Raises:
        InputError: no service, no such model or checkpoint, no usable prompt.
    """
    import tinker

    texts = read_prompts(request.prompts)[: request.n]
    connection = service.connect("logprob gap", {"purpose": "compare logprobs"})
    diagnosis = Diagnosis(healthy="sampler and trainer agree on every model")
    diagnosis.checked = {"models": 0, "tokens": 0}
    measured = {}
    for model in request.models:
        cli.say(f"{model}: sampling {len(texts)} prompts")
        try:
            tokenizer, scores = _measure(connection, request, model, texts)
        except tinker.TinkerError as error:
            raise InputError(f"{model}: {service.brief(error)}") from None
        if not all(map(math.isfinite, [*scores.sampled, *scores.sampler, *scores.trainer])):
            raise InputError(f"{model}: the service returned logprobs that are no numbers")
        judged = judge(model, scores, request.temperature, tokenizer)
        diagnosis.findings += judged.findings
        diagnosis.checked["models"] += 1
        diagnosis.checked["tokens"] += len(scores.tokens)
        zeros = sum(value == 0.0 for value in scores.sampled) / len(scores.sampled)
        for name, between in judged.gaps.items():
            diagnosis.notes.append(f"{model}, {name}: {between.line()}")
        diagnosis.notes.append(
            f"{model}: passes up to a mean of {judged.allowed:.3g}; "
            f"{zeros:.1%} of the sampled logprobs are exactly 0.0"
        )
        measured[model] = {
            "allowed_mean": judged.allowed,
            "exact_zero_share": zeros,
            **{name: between.as_dict() for name, between in judged.gaps.items()},
        }
    diagnosis.details["gaps"] = measured
    return diagnosis


def read_prompts(path: Path | None) -> list[str]:
    """Prompts, one a line; ours without a file.

    Raises:
        InputError: no such file, not text, or nothing in it.
    """
    if path is None:
        return list(PROMPTS)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"prompts file {path}: {getattr(error, 'strerror', error)}") from None
    texts = [line.strip() for line in lines if line.strip()]
    if not texts or any("\0" in text for text in texts):
        raise InputError(f"prompts file {path}: no prompt in it; write one a line, as plain text")
    return texts


def _measure(
    connection: Any, request: Request, model: str, texts: Sequence[str]
) -> tuple[Any, Scores]:
    tokenizer = load_tokenizer(request.tokenizer or model)
    renderer = resolve_renderer(model, tokenizer).renderer
    prompts = [
        renderer.build_generation_prompt([{"role": "user", "content": text}]).to_ints()
        for text in texts
    ]
    pending_base = connection.create_sampling_client(base_model=model)
    pending_fresh = connection.create_lora_training_client(model, rank=request.rank, seed=0)
    base_sampler, base_trainer = pending_base.result(), pending_fresh.result()
    sampler, trainer = base_sampler, base_trainer
    if request.checkpoint:
        trainer = connection.create_training_client_from_state(request.checkpoint).result()
        _same_base(trainer.get_info().model_data.model_name, model, request.checkpoint)
    if request.sampler:
        sampler = connection.create_sampling_client(model_path=request.sampler).result()
        _same_base(sampler.get_base_model(), model, request.sampler)
    elif request.checkpoint:
        sampler = trainer.save_weights_and_get_sampling_client().result()
    sampled = measure.sample(
        sampler,
        prompts,
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        seed=request.seed,
    )
    with_floor = bool(request.checkpoint or request.sampler)
    return tokenizer, Scores(
        tokens=[token for it in sampled for token in it.answer],
        sampled=[value for it in sampled for value in it.logprobs],
        sampler=measure.by_sampler(sampler, sampled),
        trainer=measure.by_trainer(trainer, sampled),
        base_sampler=measure.by_sampler(base_sampler, sampled) if with_floor else None,
        base_trainer=measure.by_trainer(base_trainer, sampled) if with_floor else None,
    )


def _same_base(found: str | None, model: str, path: str) -> None:
    if found and found != model:
        raise InputError(f"{path} belongs to {found}, not to {model}: name that with --model")
