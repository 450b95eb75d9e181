"""One SDK client, and one training client on it, for the tests of a file."""

from __future__ import annotations

import pytest
import tinker
from sdk_calls import step


@pytest.fixture(scope="module")
def service(rehearsal) -> tinker.ServiceClient:
    return rehearsal.client()


@pytest.fixture(scope="module")
def training(rehearsal, service) -> tinker.TrainingClient:
    """A client with one optimizer step behind it."""
    client = service.create_lora_training_client(rehearsal.model, rank=4, seed=1).result()
    step(client)
    return client
