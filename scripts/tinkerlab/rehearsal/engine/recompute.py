"""Long training passes in bounded memory: decoder layers that compute their activations twice.

All layers' activations of all tokens are kept until the backward pass, many times the size of
the layers' inputs. In a pass under :func:`recompute_layers` a layer keeps its input only, and
computes the rest again in the backward pass.
Like the choice of adapters this belongs to the running thread: sampling shares the model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tinkerlab.rehearsal.engine.lora import without_counting


class _ThreadState(threading.local):
    on: bool = False


_thread = _ThreadState()


def install(model: nn.Module) -> None:
    """Patch the decoder layers of a transformers model; without effect until asked for."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.forward = partial(_forward, layer.forward)


@contextmanager
def recompute_layers(on: bool) -> Iterator[None]:
    """Recompute (or not) in the passes that this thread runs inside, forward and backward."""
    outer = _thread.on
    _thread.on = on
    try:
        yield
    finally:
        _thread.on = outer


def _forward(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not (_thread.on and torch.is_grad_enabled()):
        return plain(*args, **kwargs)
    return checkpoint(
        plain,
        *args,
        use_reentrant=False,
        preserve_rng_state=False,  # no layer draws random numbers
        context_fn=_contexts,
        **kwargs,
    )


def _contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Around the first and the second computation; tokens are counted in the first alone."""
    return nullcontext(), without_counting()
