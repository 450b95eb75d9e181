"""Small calls that tests of the service make through the unmodified SDK."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import tinker
from tinker import types

PROMPT = tinker.ModelInput.from_ints([72, 101, 108, 108, 111])


def datum(tokens: list[int], weight: float = 1.0) -> tinker.Datum:
    """Next-token prediction over all of ``tokens``."""
    inputs: dict[str, Any] = {
        "target_tokens": tokens[1:],
        "weights": np.full(len(tokens) - 1, weight, np.float32),
    }
    prompt = tinker.ModelInput.from_ints(tokens[:-1])
    return tinker.Datum(model_input=prompt, loss_fn_inputs=inputs)


DATA = [datum([10, 20, 30, 40, 50, 60]), datum([7, 8, 9])]


def step(client: tinker.TrainingClient, learning_rate: float = 1e-2) -> float:
    """One pipelined training step; returns the loss before it."""
    forward = client.forward_backward(DATA, "cross_entropy")
    update = client.optim_step(types.AdamParams(learning_rate=learning_rate))
    loss = forward.result().metrics["loss:sum"]
    update.result()
    return loss


def unique(stem: str) -> str:
    return f"{stem}-{uuid.uuid4().hex[:8]}"
