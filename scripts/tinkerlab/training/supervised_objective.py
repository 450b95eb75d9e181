"""What supervised fine-tuning puts into the loop: cross-entropy on a batch, NLL on held-out rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tinkerlab.training.batches import BatchPlan
from tinkerlab.training.loop import Await, Metrics

if TYPE_CHECKING:
    import tinker

LOSS = "cross_entropy"


class SupervisedObjective:
    """Cross-entropy of the trained tokens.

    The service's loss is ``sum over examples and tokens of -weight * logprob``. Weights sum to
    1 in each example, so it is the sum over the batch of the examples' mean NLL; the logged
    NLL is that sum divided by the number of examples.

    Args:
        datum: the training example of an index, rendered when it is needed.
        held_out: the evaluation examples, rendered once.
    """

    watched: tuple[str, ...] = ("train_mean_nll", "test/nll", "grad_norm")

    def __init__(
        self,
        client: tinker.TrainingClient,
        plan: BatchPlan,
        datum: Callable[[int], tinker.Datum],
        held_out: Sequence[tinker.Datum],
        tokenizer: Any,
    ) -> None:
        self._client = client
        self._plan = plan
        self._datum = datum
        self._held_out = list(held_out)
        self._tokenizer = tokenizer

    def position(self, step: int) -> tuple[int, int]:
        return self._plan.position(step)

    def submit(self, step: int) -> Await:
        started = time.monotonic()
        batch = [self._datum(index) for index in self._plan.indices(step)]
        seconds = time.monotonic() - started
        future = self._client.forward_backward(batch, LOSS)

        def metrics() -> Metrics:
            output = future.result()
            mean_nll, mean_bpb, _ = self._score(batch, output)
            return {
                "num_sequences": len(batch),
                "num_tokens": sum(datum.model_input.length for datum in batch),
                "num_loss_tokens": sum(trained_tokens(datum) for datum in batch),
                "train_mean_nll": mean_nll,
                "train_mean_bpb": mean_bpb,
                "time/get_batch": seconds,
            }

        return metrics

    def submit_evaluation(self, step: int) -> Await | None:
        """Held-out NLL by a forward pass of the training client.

        It queues between the steps like any other request, so it scores exactly the weights
        after ``step`` updates, and nothing waits for it.

        Its metrics: ``test/nll``, the mean over examples of each one's mean NLL per trained
        token (tinker-cookbook's figure, and that of the results contract);
        ``test/nll_per_token``, pooled over all trained tokens; both in nats.
        """
        if not self._held_out:
            return None
        future = self._client.forward(self._held_out, LOSS)

        def metrics() -> Metrics:
            mean_nll, mean_bpb, per_token = self._score(self._held_out, future.result())
            return {
                "test/nll": mean_nll,
                "test/nll_per_token": per_token,
                "test/bpb": mean_bpb,
            }

        return metrics

    def _score(
        self, data: list[tinker.Datum], output: tinker.ForwardBackwardOutput
    ) -> tuple[float, float, float]:
        """(mean over examples of NLL per token, bits per byte, NLL per token over all)."""
        from tinker_cookbook.supervised.common import compute_bpb, compute_mean_nll

        logprobs = [fields["logprobs"] for fields in output.loss_fn_outputs]
        weights = [datum.loss_fn_inputs["weights"] for datum in data]
        targets = [datum.loss_fn_inputs["target_tokens"] for datum in data]
        total, tokens = 0.0, 0
        for logprob, weight in zip(logprobs, weights, strict=True):
            trained = weight.to_numpy() > 0
            total -= float(logprob.to_numpy()[trained].sum(dtype=np.float64))
            tokens += int(trained.sum())
        return (
            compute_mean_nll(logprobs, weights),
            compute_bpb(logprobs, weights, targets, self._tokenizer),
            total / tokens,
        )


def trained_tokens(datum: tinker.Datum) -> int:
    """How many tokens of the example the loss counts."""
    return int((datum.loss_fn_inputs["weights"].to_numpy() > 0).sum())
