"""Checks that the configs of all kinds of training share; each raises ValueError in one line."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

MIN_TTL_SECONDS = 3600  # what the service's own documentation of save_state permits


def run_name(name: str) -> None:
    """It names a folder, a session and a W&B run."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ValueError(f"run_name {name!r}: letters, digits, '.', '_' and '-' only, 100 at most")


def at_least_one(config: Any, names: Sequence[str]) -> None:
    """Each named setting is 1 or more, or null."""
    for name in names:
        value = getattr(config, name)
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")


def not_negative(config: Any, names: Sequence[str]) -> None:
    """Each named setting is a finite number of 0 or more."""
    for name in names:
        value = getattr(config, name)
        if isinstance(value, float) and (not math.isfinite(value) or value < 0):
            raise ValueError(f"{name} must be a finite number of at least 0, got {value}")
        if value < 0:
            raise ValueError(f"{name} must not be negative, got {value}")


def optimizer(config: Any) -> None:
    """The learning rate and AdamW's settings."""
    not_negative(config, ("adam_eps", "weight_decay", "grad_clip_norm"))
    for name in ("adam_beta1", "adam_beta2"):
        if not 0 <= getattr(config, name) < 1:
            raise ValueError(f"{name} must be in [0, 1), got {getattr(config, name)}")
    rate = config.learning_rate
    if isinstance(rate, float) and not (math.isfinite(rate) and rate > 0):
        raise ValueError(f"learning_rate must be 'auto' or a number above 0, got {rate}")


def adapter(config: Any) -> None:
    """The adapter has some part to train."""
    if not (config.train_mlp or config.train_attn or config.train_unembed):
        raise ValueError("train_mlp, train_attn, train_unembed: at least one must be true")


def ttl(seconds: int | None) -> None:
    """The life of the periodic checkpoints."""
    if seconds is not None and seconds < MIN_TTL_SECONDS:
        raise ValueError(
            f"ttl_seconds must be at least {MIN_TTL_SECONDS}, or null to keep periodic"
            f" checkpoints for ever, got {seconds}"
        )
