"""What DPO puts into the loop: its loss on a batch of pairs, its figures on held-out pairs.

The loss and its metrics are tinker-cookbook's ``compute_dpo_loss``. The reference's
log-probabilities come from a training client that is never updated, by ``forward`` on the very
batch that the policy is trained on: then both are computed alike, the log-ratios of step 0 are
exactly zero, and a repeated step is the same to the bit. (The cookbook asks a sampling client,
whose numbers may differ from the trainer's in the last bits, and with what else it is doing.)
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinkerlab.training.batches import BatchPlan
from tinkerlab.training.dpo.data import DPOData
from tinkerlab.training.loop import Await, Metrics

if TYPE_CHECKING:
    import tinker
    import torch

LOSS = "cross_entropy"  # for its log-probabilities; its value is not used


@dataclass(frozen=True)
class PairLogprobs:
    """Summed log-probabilities (nats) of the replies of P pairs; scalars."""

    chosen: list[torch.Tensor]
    rejected: list[torch.Tensor]

    def policy_accuracy(self) -> float:
        """Share of pairs whose chosen reply the model itself finds the more probable."""
        found = [
            float(chosen) > float(rejected)
            for chosen, rejected in zip(self.chosen, self.rejected, strict=True)
        ]
        return sum(found) / len(found)


class DPOObjective:
    """Prefer the chosen replies, measured against a frozen reference.

    Args:
        reference: a training client with the weights that the run started from.
        total_steps: of the run; no batch is prepared beyond.
    """

    watched: tuple[str, ...] = ("dpo_loss", "test/dpo_loss", "grad_norm")

    def __init__(
        self,
        client: tinker.TrainingClient,
        reference: tinker.TrainingClient,
        plan: BatchPlan,
        data: DPOData,
        beta: float,
        total_steps: int,
    ) -> None:
        self._client = client
        self._reference = reference
        self._plan = plan
        self._data = data
        self._beta = beta
        self._total_steps = total_steps
        self._ahead: dict[int, tuple[list[tinker.Datum], Any]] = {}
        self._held_out = data.datums(data.held_out)
        self._held_out_reference: PairLogprobs | None = None

    def position(self, step: int) -> tuple[int, int]:
        return self._plan.position(step)

    def submit(self, step: int) -> Await:
        """Submit the gradients of ``step``, once the reference has scored its pairs.

        The next step's pairs are sent to the reference before this one waits.
        """
        timings: Metrics = {}
        started = time.monotonic()
        for coming in (step, step + 1):
            if coming < self._total_steps and coming not in self._ahead:
                batch = self._batch(coming)
                self._ahead[coming] = (batch, self._reference.forward(batch, LOSS))
        timings["time/get_batch"] = time.monotonic() - started
        batch, scored = self._ahead.pop(step)
        started = time.monotonic()
        reference = pair_logprobs(batch, scored.result())
        timings["time/get_ref_logprobs"] = time.monotonic() - started
        future = self._client.forward_backward_custom(batch, dpo_loss(reference, self._beta))

        def finish() -> Metrics:
            found = future.result().metrics or {}
            return {
                "num_pairs": len(batch) // 2,
                "num_tokens": sum(datum.model_input.length for datum in batch),
                **found,
                **timings,
            }

        return finish

    def submit_evaluation(self, step: int) -> Await | None:
        """The loss and its metrics on the held-out pairs, under ``test/``.

        ``test/accuracy`` is the share of pairs whose implicit reward is the higher for the
        chosen reply, which is 0 before the first update since all rewards are 0;
        ``test/policy_accuracy`` the share whose chosen reply is the more probable.
        """
        if not self._held_out:
            return None
        future = self._client.forward(self._held_out, LOSS)
        if self._held_out_reference is None:
            scored = self._reference.forward(self._held_out, LOSS).result()
            self._held_out_reference = pair_logprobs(self._held_out, scored)
        reference = self._held_out_reference

        def finish() -> Metrics:
            policy = pair_logprobs(self._held_out, future.result())
            return {
                f"test/{key}": value
                for key, value in figures(policy, reference, self._beta).items()
            }

        return finish

    def _batch(self, step: int) -> list[tinker.Datum]:
        """Chosen and rejected side of each pair of ``step`` in turn."""
        return self._data.datums([self._data.train[index] for index in self._plan.indices(step)])


def pair_logprobs(
    data: Sequence[tinker.Datum], output: tinker.ForwardBackwardOutput
) -> PairLogprobs:
    """Sums over the replies' tokens, from a forward pass on ``data``."""
    return _summed(data, [fields["logprobs"].to_torch() for fields in output.loss_fn_outputs])


def _summed(data: Sequence[tinker.Datum], logprobs: Sequence[torch.Tensor]) -> PairLogprobs:
    import torch

    sums = [
        torch.dot(logprob.float(), datum.loss_fn_inputs["weights"].to_torch().float())
        for logprob, datum in zip(logprobs, data, strict=True)
    ]
    return PairLogprobs(sums[0::2], sums[1::2])


def dpo_loss(reference: PairLogprobs, beta: float) -> Any:
    """The loss as ``forward_backward_custom`` takes it.

    A loss that is not finite gives gradients of zero: its value then reaches the metrics, and
    the loop stops with the reason, where gradients of NaN would make the service refuse.
    """
    import torch
    from tinker_cookbook.preference.train_dpo import compute_dpo_loss

    def loss_of(
        data: list[tinker.Datum], logprobs: list[torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, float]]:
        policy = _summed(data, logprobs)
        loss, metrics = compute_dpo_loss(
            policy.chosen, policy.rejected, reference.chosen, reference.rejected, beta
        )
        if not torch.isfinite(loss):
            loss = torch.stack([torch.nan_to_num(logprob).sum() * 0 for logprob in logprobs]).sum()
        return loss, metrics

    return loss_of


def figures(policy: PairLogprobs, reference: PairLogprobs, beta: float) -> dict[str, float]:
    """tinker-cookbook's DPO metrics, and the policy's own accuracy."""
    from tinker_cookbook.preference.train_dpo import compute_dpo_loss

    _, metrics = compute_dpo_loss(
        policy.chosen, policy.rejected, reference.chosen, reference.rejected, beta
    )
    return {**metrics, "policy_accuracy": policy.policy_accuracy()}
