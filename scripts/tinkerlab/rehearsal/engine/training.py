"""One adapter in training: forward_backward, optim_step, save and load."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tinkerlab.rehearsal.engine import adapter_files, losses
from tinkerlab.rehearsal.engine.adapter import AdapterBuffers, FrozenAdapter, chosen_sites
from tinkerlab.rehearsal.engine.base import BaseModel
from tinkerlab.rehearsal.engine.head import Head
from tinkerlab.rehearsal.engine.logprobs import rows_per_chunk, target_logprobs
from tinkerlab.rehearsal.engine.lora import ExpertLoads, use_adapter
from tinkerlab.rehearsal.engine.losses import Loss
from tinkerlab.rehearsal.engine.optimizer import AdamW
from tinkerlab.rehearsal.engine.passes import Batch, batches
from tinkerlab.rehearsal.engine.recompute import recompute_layers
from tinkerlab.rehearsal.engine.types import (
    AdamSettings,
    AdapterConfig,
    ForwardBackwardResult,
    TrainingDatum,
)
from tinkerlab.rehearsal.errors import UserError

OPTIMIZER = "optimizer.safetensors"

_MOMENTS = ("exp_avg", "exp_avg_sq")

# A pass over more tokens than this (one long datum) trades time for memory.
_TOKENS_BEFORE_RECOMPUTING = 2048


class TrainableAdapter:
    """An adapter on a shared base model, with its gradients and its optimizer.

    Calls from several threads are carried out one after another. Other adapters on the same
    base, and sampling, go on meanwhile.
    """

    def __init__(self, base: BaseModel, config: AdapterConfig) -> None:
        """Make fresh weights (raises ``UserError`` for a rank or a choice that can't be)."""
        self.base = base
        self.config = config
        self._buffers = AdapterBuffers(chosen_sites(base, config), config)
        self._optimizer = AdamW()
        self._gradient_pending = False
        self._lock = threading.RLock()

    @property
    def parameter_count(self) -> int:
        return self._buffers.flat.numel()

    def forward_backward(
        self,
        data: list[TrainingDatum],
        loss_fn: str,
        loss_config: Mapping[str, float | str] | None = None,
        *,
        forward_only: bool = False,
    ) -> ForwardBackwardResult:
        """Compute the loss and add its gradient to what earlier calls left.

        Returns:
            For each datum, in order, ``logprobs`` and ``elementwise_loss``: float32, of the
            targets' shape. Metrics: ``loss:sum``, and for mixtures of experts those that
            ``tinker.types.ForwardBackwardOutput`` documents.

        Raises:
            UserError: an input that the loss or the model can't take; nothing has changed.
        """
        losses.check_inputs(loss_fn, loss_config, data)
        for index, datum in enumerate(data):
            self._check_tokens(index, datum)
        loss, settings = losses.resolve(loss_fn, loss_config)
        outputs: list[dict[str, np.ndarray]] = [{} for _ in data]
        loads: dict[str, Tensor] = {}
        with self._lock:
            try:
                for batch in batches(data):
                    self._run(batch, loss, settings, loads, outputs, forward_only)
            except BaseException:
                # Half a batch's gradient is worth nothing; the failure tells the caller.
                if not forward_only:
                    self._forget_gradient()
                raise
            if not forward_only:
                self._gradient_pending = True
        total = sum(float(output["elementwise_loss"].sum(dtype=np.float64)) for output in outputs)
        return ForwardBackwardResult(outputs, {"loss:sum": total, **_expert_metrics(loads)})

    def optim_step(self, settings: AdamSettings) -> dict[str, float]:
        """Take one AdamW step with the gradient so far, then start a new one.

        Without a forward_backward since the last step nothing changes, not even the step
        count: ``torch.optim.AdamW`` passes over parameters that have no gradient. (What the
        hosted service does then is not documented.)

        Returns:
            ``grad_norm:mean``: the gradient's norm before clipping.
        """
        with self._lock:
            if not self._gradient_pending:
                return {"grad_norm:mean": 0.0}
            buffers = self._buffers
            norm = self._optimizer.step(buffers.flat, buffers.gradient, settings)
            self._forget_gradient()
            return {"grad_norm:mean": norm}

    def snapshot(self) -> FrozenAdapter:
        """Copy the weights, for sampling while training goes on."""
        with self._lock:
            return self._buffers.snapshot()

    def gradients(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Copy the gradient so far: by site, of A and of B."""
        with self._lock:
            return self._buffers.views(self._buffers.gradient.clone())

    def save(self, directory: Path, *, with_optimizer: bool) -> None:
        """Write the adapter's files, and with them the optimizer's state if asked.

        A gradient that no optim_step has used is not part of a checkpoint.
        """
        with self._lock:
            adapter_files.write(self.base, directory, self.config, self._buffers.weights.pairs)
            if not with_optimizer:
                return
            tensors: dict[str, Tensor] = {
                "steps": torch.tensor([self._optimizer.steps], dtype=torch.int64)
            }
            if self._optimizer.moments is not None:
                for moment, flat in zip(_MOMENTS, self._optimizer.moments, strict=True):
                    for site, pair in self._buffers.views(flat).items():
                        for factor, tensor in zip("AB", pair, strict=True):
                            tensors[f"{moment}.{site}.{factor}"] = tensor
            adapter_files.write_tensors(directory / OPTIMIZER, tensors)

    def load(self, directory: Path, *, with_optimizer: bool) -> None:
        """Take over saved weights; the optimizer's state too if asked, else a fresh one.

        Going on after a load with the optimizer gives the same bits as never having stopped.
        A pending gradient is dropped: it belonged to other weights.

        Raises:
            UserError: missing or broken files, or an adapter of another rank, of other sites
                or of another model; nothing has changed then.
        """
        rank, alpha, pairs = adapter_files.read(self.base, directory)
        if rank != self.config.rank:
            raise UserError(f"{directory}: has LoRA rank {rank}, this run has {self.config.rank}")
        if alpha != self.config.alpha:
            raise UserError(f"{directory}: has alpha {alpha}, this run has {self.config.alpha}")
        mine, saved = set(self._buffers.weights.pairs), set(pairs)
        if mine != saved:
            raise UserError(
                f"{directory}: trains other layers than this run, {sorted(mine ^ saved)[0]} for"
                " one: create the run with the same train_attn, train_mlp and train_unembed"
            )
        optimizer = self._read_optimizer(directory / OPTIMIZER) if with_optimizer else AdamW()
        with self._lock, torch.no_grad():
            for site, pair in self._buffers.weights.pairs.items():
                for mine_, saved_ in zip(pair, pairs[site], strict=True):
                    mine_.copy_(saved_)
            self._optimizer = optimizer
            self._forget_gradient()

    def _read_optimizer(self, path: Path) -> AdamW:
        tensors = adapter_files.read_tensors(path)
        optimizer = AdamW()
        try:
            optimizer.steps = int(tensors.pop("steps"))
            if tensors:
                optimizer.moments = (
                    torch.zeros_like(self._buffers.flat),
                    torch.zeros_like(self._buffers.flat),
                )
                for moment, flat in zip(_MOMENTS, optimizer.moments, strict=True):
                    for site, pair in self._buffers.views(flat).items():
                        for factor, view in zip("AB", pair, strict=True):
                            view.copy_(tensors[f"{moment}.{site}.{factor}"].view_as(view))
        except (KeyError, ValueError, RuntimeError) as error:
            raise UserError(f"{path}: doesn't fit this adapter ({error})") from error
        return optimizer

    def _forget_gradient(self) -> None:
        self._gradient_pending = False
        self._buffers.clear_gradient()

    def _check_tokens(self, index: int, datum: TrainingDatum) -> None:
        if len(datum.tokens) > self.base.context_length:
            raise UserError(
                f"datum {index}: {len(datum.tokens)} tokens are more than the context window of"
                f" {self.base.name}, {self.base.context_length}"
            )
        named = {"model_input": datum.tokens, "target_tokens": datum.loss_inputs["target_tokens"]}
        for name, tokens in named.items():
            low, high = int(tokens.min()), int(tokens.max())
            if low < 0 or high >= self.base.vocab_size:
                raise UserError(
                    f"datum {index}: {name} holds token {low if low < 0 else high}, but"
                    f" {self.base.name} has tokens 0 to {self.base.vocab_size - 1}"
                )

    def _run(
        self,
        batch: Batch,
        loss: Loss,
        config: Mapping[str, float],
        loads: dict[str, Tensor],
        outputs: list[dict[str, np.ndarray]],
        forward_only: bool,
    ) -> None:
        """One pass over ``batch``: fills its ``outputs`` and adds its gradient."""
        inputs = dict(batch.inputs)
        active = loss.has_gradient(inputs, config)
        if active.ndim == 2:
            active = active.any(dim=1)
        train = not forward_only and bool(active.any())
        if train:
            _ = self._buffers.gradient  # the backward pass adds to it
        counter = ExpertLoads(batch.mask, loads)
        long = batch.tokens.numel() > _TOKENS_BEFORE_RECOMPUTING
        with use_adapter(self._buffers.weights, counter), recompute_layers(long):
            with torch.set_grad_enabled(train):
                hidden = self.base.hidden_states(batch.tokens)
            flat = hidden.detach().reshape(-1, hidden.shape[-1])
            if loss.sequence_ratio:
                inputs[losses.SEQUENCE_LOG_RATIO] = self._sequence_ratios(flat, batch)
            head = Head(self.base, loss, config, batch, inputs, flat)
            head.forward(~active if train else torch.ones_like(active))
            if train:
                gradient = head.forward_backward(active)
                if hidden.requires_grad:
                    hidden.backward(gradient.view_as(hidden))
        head.collect(outputs)

    @torch.no_grad()
    def _sequence_ratios(self, flat: Tensor, batch: Batch) -> Tensor:
        """For each token, its sequence's mean log-ratio (see ``losses.sequence_log_ratio``)."""
        logprobs = torch.empty(len(batch.positions))
        for chunk in torch.arange(len(logprobs)).split(rows_per_chunk(self.base.vocab_size)):
            logits = self.base.logits(flat[batch.positions[chunk]])
            logprobs[chunk] = target_logprobs(logits, batch.targets[chunk])
        lengths = batch.lengths
        parts = [
            losses.sequence_log_ratio(piece, dict(zip(batch.inputs, values, strict=True)))
            for piece, *values in zip(
                logprobs.split(lengths),
                *(value.split(lengths) for value in batch.inputs.values()),
                strict=True,
            )
        ]
        return torch.cat([p.expand(n) for p, n in zip(parts, lengths, strict=True)])


def _expert_metrics(loads: Mapping[str, Tensor]) -> dict[str, float]:
    """How evenly tokens fell on experts; formulas of ``tinker.types.ForwardBackwardOutput``."""
    if not loads:
        return {}
    counts = torch.stack([counts.double() for counts in loads.values()])  # [layers, experts]
    fair = counts.mean(dim=1, keepdim=True)
    violation = (counts - fair) / fair
    return {
        "e_frac_with_tokens:mean": float((counts > 0).double().mean()),
        "e_frac_oversubscribed:mean": float((counts > fair).double().mean()),
        "e_max_violation:mean": float(violation.amax(dim=1).mean()),
        "e_max_violation:max": float(violation.max()),
        "e_min_violation:mean": float(violation.amin(dim=1).mean()),
    }
