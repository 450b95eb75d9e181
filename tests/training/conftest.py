"""A Tinker service in memory, whose "weights" are the list of the updates made to them.

It takes every request at once, as the real one would if the trainer died right after
submitting it: whatever was submitted ahead has happened on the service. A training client
dies with its process; what it saved stays.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import tinker
from tinker.lib.public_interfaces.api_future import AwaitableConcurrentFuture

from tinkerlab import service
from tinkerlab.runs import provenance
from tinkerlab.training.run import peak_learning_rate
from tinkerlab.training.supervised import SupervisedRun
from tinkerlab.training.supervised_config import SupervisedConfig
from tinkerlab.training.supervised_data import SupervisedData

Update = tuple[tuple[int, ...], float]
Weights = tuple[Update, ...]


def answered(value: Any = None, error: Exception | None = None) -> AwaitableConcurrentFuture:
    future: Future = Future()
    if error:
        future.set_exception(error)
    else:
        future.set_result(value)
    return AwaitableConcurrentFuture(future)


def number(*parts: object) -> float:
    """A number in [0, 1) that depends on ``parts`` alone."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big") / 2**32


@dataclass
class FakeService:
    """The service's memory. ``diverge_at``: updates after which every logprob is NaN."""

    saved: dict[str, Weights] = field(default_factory=dict)
    lives: dict[str, int | None] = field(default_factory=dict)
    clients: int = 0
    diverge_at: int | None = None
    calls: list[str] = field(default_factory=list)

    # ServiceClient
    def create_lora_training_client(self, base_model: str, **_: Any) -> AwaitableConcurrentFuture:
        return answered(self._client(()))

    def create_training_client_from_state_with_optimizer(
        self, path: str, user_metadata: Any = None
    ) -> AwaitableConcurrentFuture:
        return answered(self._client(self.saved[path]))

    def close(self, status: str) -> AwaitableConcurrentFuture:
        return answered()

    # RestClient
    def get_weights_info_by_tinker_path(self, path: str) -> AwaitableConcurrentFuture:
        if path in self.saved:
            return answered()
        return answered(error=self.refusal(tinker.NotFoundError, 404))

    @staticmethod
    def refusal(kind: Any, status: int) -> Exception:
        import httpx

        request = httpx.Request("POST", "http://127.0.0.1")
        return kind("refused", response=httpx.Response(status, request=request), body=None)

    def _client(self, weights: Weights) -> FakeTrainingClient:
        self.clients += 1
        return FakeTrainingClient(self, f"session-{self.clients}:train:0", weights)


class FakeTrainingClient:
    def __init__(self, memory: FakeService, model_id: str, weights: Weights) -> None:
        self.memory, self.model_id, self.weights = memory, model_id, weights
        self.gradient: list[int] = []
        self.holder = SimpleNamespace(run_coroutine_threadsafe=self._run)

    @staticmethod
    def _run(coroutine: Any) -> AwaitableConcurrentFuture:
        coroutine.close()
        return answered()

    def forward_backward(self, data: list[tinker.Datum], loss_fn: str) -> AwaitableConcurrentFuture:
        self.memory.calls.append("forward_backward")
        output = self._output(data)
        self.gradient += [datum.model_input.to_ints()[0] for datum in data]
        return answered(output)

    def forward(self, data: list[tinker.Datum], loss_fn: str) -> AwaitableConcurrentFuture:
        self.memory.calls.append("forward")
        return answered(self._output(data))

    def optim_step(self, adam_params: tinker.AdamParams) -> AwaitableConcurrentFuture:
        self.memory.calls.append("optim_step")
        self.weights += ((tuple(self.gradient), adam_params.learning_rate),)
        self.gradient = []
        return answered(tinker.OptimStepResponse(metrics={"grad_norm:mean": number(self.weights)}))

    def save_state(self, name: str, ttl_seconds: int | None, overwrite: bool) -> Any:
        return self._save(f"tinker://{self.model_id}/weights/{name}", ttl_seconds)

    def save_weights_for_sampler(self, name: str, ttl_seconds: int | None) -> Any:
        return self._save(f"tinker://{self.model_id}/sampler_weights/{name}", ttl_seconds)

    def _save(self, path: str, ttl_seconds: int | None) -> AwaitableConcurrentFuture:
        self.memory.saved[path] = self.weights
        self.memory.lives[path] = ttl_seconds
        return answered(SimpleNamespace(path=path))

    def _output(self, data: list[tinker.Datum]) -> tinker.ForwardBackwardOutput:
        broken = self.memory.diverge_at is not None and len(self.weights) >= self.memory.diverge_at
        outputs = []
        for datum in data:
            tokens = datum.model_input.to_ints()
            logprobs = [
                float("nan") if broken else -1.0 - number(self.weights, tokens, position)
                for position in range(len(tokens))
            ]
            outputs.append({"logprobs": tinker.TensorData(data=logprobs, dtype="float32")})
        return tinker.ForwardBackwardOutput(
            loss_fn_output_type="", loss_fn_outputs=outputs, metrics={"loss:sum": 0.0}
        )


class FakeTokenizer:
    all_special_ids: tuple[int, ...] = ()

    def decode(self, tokens: list[int], skip_special_tokens: bool = False) -> str:
        return "x" * len(tokens)


@dataclass(frozen=True)
class FakeRow:
    index: int
    messages: tuple[str, ...]
    tools: tuple = ()


class FakeData(SupervisedData):
    """Row ``i`` is the tokens ``i, i + 1, i + 2, i + 3``, of which the last three are trained."""

    def datum(self, row: Any) -> tinker.Datum:
        return tinker.Datum(
            model_input=tinker.ModelInput.from_ints([row.index + offset for offset in range(4)]),
            loss_fn_inputs={
                "target_tokens": tinker.TensorData(
                    data=[row.index + offset for offset in range(1, 5)], dtype="int64"
                ),
                "weights": tinker.TensorData(data=[0.0, 1 / 3, 1 / 3, 1 / 3], dtype="float32"),
            },
        )

    def report_document(self) -> Any:
        return {"rows": len(self.train)}

    def held_out_documents(self) -> list[dict[str, Any]]:
        return [{"messages": list(row.messages)} for row in self.held_out]


def rows(first: int, last: int) -> list[Any]:
    return [FakeRow(index, (f"row {index}",)) for index in range(first, last)]


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> FakeService:
    fake = FakeService()
    monkeypatch.setattr(service, "connect", lambda *_: fake)
    # Hundreds of runs: git and the disk's own cache are tested elsewhere.
    monkeypatch.setattr(provenance, "git_commit", lambda _: "commit")
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(service, "rest_client", lambda: fake)
    return fake


@pytest.fixture
def make_run(tmp_path: Any, memory: FakeService) -> Callable[..., SupervisedRun]:
    """A run of seven steps of two rows, saved every third, evaluated every second."""

    def make(name: str = "run", held_out: int = 3, train_rows: int = 9, **changes: Any):
        settings = {
            "base_model": "m",
            "train_file": "t.jsonl",
            "log_path": str(tmp_path / name),
            "train_batch_size": 2,
            "num_steps": 7,
            "eval_every": 2,
            "save_every": 3,
            "learning_rate": 0.01,
            **changes,
        }
        config = SupervisedConfig(**settings)
        data = FakeData(
            train=rows(100, 100 + train_rows),
            held_out=rows(0, held_out),
            renderer=None,
            renderer_name="fake",
            tokenizer=FakeTokenizer(),
            report=None,
            config=config,
        )
        return SupervisedRun(
            config,
            data,
            peak_learning_rate(config),
            command="python scripts/sl_trainer.py --config c.yaml",
        )

    return make
