"""Which examples each step trains on: a pure function of seed and step.

Nothing is kept between steps, so a run that resumes at step k trains on exactly the examples
that an uninterrupted one would have.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass

from tinkerlab.errors import InputError


@dataclass(frozen=True)
class BatchPlan:
    """Batches of ``batch_size`` out of ``num_examples``, each epoch in an order of its own.

    The remainder that fills no batch is left out of an epoch, as in tinker-cookbook; since the
    order changes, the next epoch leaves out others.

    Raises:
        InputError: fewer examples than one batch.
    """

    num_examples: int
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        if self.num_examples < self.batch_size:
            raise InputError(
                f"train_batch_size is {self.batch_size}, but there are {self.num_examples} training"
                f" examples; set train_batch_size={max(self.num_examples, 1)} or less"
            )

    @property
    def steps_per_epoch(self) -> int:
        return self.num_examples // self.batch_size

    def position(self, step: int) -> tuple[int, int]:
        """(epoch, batch within the epoch) of ``step``."""
        return divmod(step, self.steps_per_epoch)

    def indices(self, step: int) -> list[int]:
        """The examples of ``step``, in order."""
        epoch, batch = self.position(step)
        order = epoch_order(self.num_examples, self.seed, epoch)
        return list(order[batch * self.batch_size : (batch + 1) * self.batch_size])

    def total_steps(self, num_epochs: int | None, num_steps: int | None) -> int:
        """Steps of the whole run; one epoch when neither is given."""
        if num_steps is not None:
            return num_steps
        return self.steps_per_epoch * (num_epochs or 1)


@functools.lru_cache(maxsize=2)
def epoch_order(num_examples: int, seed: int, epoch: int) -> tuple[int, ...]:
    """A permutation of ``range(num_examples)``.

    Sorted by SHA-256 rather than drawn from a generator: the same on every machine and with
    every version of Python and NumPy, so that an old run can still be resumed.
    """

    def key(index: int) -> bytes:
        return hashlib.sha256(f"{seed}:{epoch}:{index}".encode()).digest()

    return tuple(sorted(range(num_examples), key=key))
