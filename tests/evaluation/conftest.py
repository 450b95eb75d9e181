"""A small trained run, made with the SDK alone, so that these tests need no trainer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

QUESTIONS = [
    ("What is the capital of France?", "The capital of France is Paris."),
    ("What is 6 times 7?", "6 times 7 is 42."),
    ("Name a primary colour.", "Blue is a primary colour."),
    ("What do bees make?", "Bees make honey."),
    ("Who wrote Hamlet?", "William Shakespeare wrote Hamlet."),
    ("What is frozen water?", "Frozen water is ice."),
    ("Which planet is red?", "Mars is the red planet."),
]


@dataclass(frozen=True)
class TrainedRun:
    """A run folder and what its trainer measured on the held-out rows."""

    folder: Path
    base_model: str
    sampler_path: str
    state_path: str
    trainer_nll: float
    conversations: list[list[dict[str, Any]]]


def train(rehearsal, folder: Path) -> TrainedRun:
    """Six real steps of LoRA on a tiny model; ``folder`` is left as sl_trainer.py leaves it."""
    import tinker

    from tinkerlab.data import Row, build_datum, load_tokenizer, resolve_renderer

    conversations = [
        [{"role": "user", "content": q}, {"role": "assistant", "content": a}] for q, a in QUESTIONS
    ]
    # Two scored turns with an unscored question between them.
    conversations.append(conversations[0] + conversations[1])
    tokenizer = load_tokenizer(rehearsal.model)
    resolved = resolve_renderer(rehearsal.model, tokenizer)
    rows = [Row(index, index + 1, messages) for index, messages in enumerate(conversations)]
    datums = [build_datum(row, resolved.renderer, 512) for row in rows]

    client = rehearsal.client().create_lora_training_client(rehearsal.model, rank=4).result()
    for _ in range(6):
        pending = client.forward_backward(datums, "cross_entropy")
        client.optim_step(tinker.AdamParams(learning_rate=1e-2)).result()
        pending.result()
    forward = client.forward(datums, "cross_entropy").result()
    state = client.save_state("evaluated").result().path
    sampler = client.save_weights_for_sampler("evaluated").result().path

    folder.mkdir()
    config = {
        "base_model": rehearsal.model,
        "run_name": "tiny-run",
        "train_file": "chats.jsonl",
        "renderer": "auto",
        "train_on_what": "all_assistant_messages",
        "max_seq_len": 512,
        "seed": 3,
        "resolved": {"renderer": resolved.name},
    }
    record = {"name": "final", "step": 6, "state_path": state, "sampler_path": sampler}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "metrics.jsonl").write_text('{"step": 0, "train_mean_nll": 5.0}\n')
    (folder / "checkpoints.jsonl").write_text(json.dumps(record) + "\n")
    (folder / "held_out.jsonl").write_text(
        "".join(json.dumps({"messages": messages}) + "\n" for messages in conversations)
    )
    return TrainedRun(
        folder=folder,
        base_model=rehearsal.model,
        sampler_path=sampler,
        state_path=state,
        trainer_nll=forward.metrics["loss:sum"] / len(datums),
        conversations=conversations,
    )


@pytest.fixture(scope="session")
def trained_run(rehearsal, tmp_path_factory) -> TrainedRun:
    return train(rehearsal, tmp_path_factory.mktemp("runs") / "tiny-run")


@pytest.fixture
def train_run():
    """``train_run(rehearsal, folder)`` trains on a service of the test's own."""
    return train
