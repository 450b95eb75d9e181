"""Batches that are dear to pack, built for real, and plain ones that are not."""

from __future__ import annotations

import os

import pytest
from fault_lab import Look, fault, healthy

QUICK = ("--repeats", "2", "--batch", "2", "--prompt-length", "8192")


@fault("serialization_test.py", "slow-datum-build", produced="one torch scalar a token")
def test_scalars_in_datums(lab) -> Look:
    code = """
import tinker, torch

def make_datum():
    ids = list(range(8000))
    inputs = {"target_tokens": [torch.tensor(i) for i in ids],
              "weights": [torch.tensor(1.0) for _ in ids]}
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(ids), loss_fn_inputs=inputs)

def make_batch():
    return [make_datum() for _ in range(4)]
"""
    return Look([*QUICK, "--builder", f"{lab.write('train.py', code)}:make_batch"])


@fault("serialization_test.py", "one-token-chunks", produced="a prompt appended to token by token")
def test_chunk_for_each_token(lab) -> Look:
    code = """
import numpy as np, tinker

def make_batch():
    prompt = tinker.ModelInput.empty()
    for token in range(1500):
        prompt = prompt.append(tinker.EncodedTextChunk(tokens=[token]))
    inputs = {"target_tokens": np.arange(1500), "weights": np.ones(1500, np.float32)}
    return [tinker.Datum(model_input=prompt, loss_fn_inputs=inputs)]
"""
    return Look([*QUICK, "--builder", f"{lab.write('train.py', code)}:make_batch"])


@fault("serialization_test.py", "oversized-datum", produced="a hundred soft targets for each token")
def test_many_soft_targets(lab) -> Look:
    return Look([*QUICK, "--top-k", "100"])


@fault(
    "serialization_test.py",
    "pure-python-protobuf",
    produced="PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python",
)
def test_protobuf_in_pure_python(lab) -> Look:
    return Look(QUICK, env={**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"})


@pytest.mark.parametrize("form", ["numpy", "torch", "lists"])
@healthy("serialization_test.py", produced="a batch of 4 x 8,192 tokens from plain arrays or lists")
def test_plain_batch(lab, form) -> Look:
    return Look(["--form", form, "--repeats", "3"])
