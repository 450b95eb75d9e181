"""Checkpoints submitted in order with the training steps and recorded once they are safe.

A record in ``checkpoints.jsonl`` is a promise that a resume relies on, so it is written only

* after the service has answered that both files are saved,
* after the metrics row of every step that the checkpoint contains is on the disk, and
* after the first loss computed with its weights came back finite.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinkerlab.runs import checkpoints, jsonl
from tinkerlab.runs.checkpoints import CheckpointRecord
from tinkerlab.runs.folder import RunFolder
from tinkerlab.training.ordering import submit_sampler_save

if TYPE_CHECKING:
    import tinker


@dataclass(frozen=True)
class _PendingSave:
    name: str
    step: int
    final: bool
    state: tinker.APIFuture
    sampler: tinker.APIFuture

    def answered(self) -> bool:
        return self.state.future().done() and self.sampler.future().done()


class CheckpointWriter:
    """Saves both kinds of checkpoint of one training client.

    Args:
        position: (epoch, batch) of a step, for the records.
        ttl_seconds: life of the periodic checkpoints on the service; the final one has no end.
        last: the record that this attempt resumed from.
    """

    def __init__(
        self,
        client: tinker.TrainingClient,
        rest: tinker.RestClient,
        folder: RunFolder,
        position: Callable[[int], tuple[int, int]],
        ttl_seconds: int | None,
        last: CheckpointRecord | None = None,
    ) -> None:
        self._client = client
        self._rest = rest
        self._folder = folder
        self._position = position
        self._ttl_seconds = ttl_seconds
        self._pending: deque[_PendingSave] = deque()
        self._newest_step = last.step if last else None
        self.last = last

    def covers(self, step: int) -> bool:
        """Whether a checkpoint with exactly ``step`` updates is recorded or on its way."""
        return self._newest_step == step

    def submit(self, step: int, *, final: bool = False) -> None:
        """Queue a save of the weights after ``step`` updates; call it before the next step's.

        ``overwrite`` only matters when the SDK repeats a save whose answer was lost: each
        attempt at a run has a training client, and so checkpoint paths, of its own.
        """
        name = "final" if final else f"{step:06d}"
        ttl = None if final else self._ttl_seconds
        state = self._client.save_state(name, ttl_seconds=ttl, overwrite=True)
        sampler = submit_sampler_save(self._client, name, ttl)
        self._pending.append(_PendingSave(name, step, final, state, sampler))
        self._newest_step = step

    def record(self, proven_step: int, *, wait: bool = False) -> list[CheckpointRecord]:
        """Record the answered saves of up to ``proven_step`` updates, oldest first.

        Args:
            proven_step: the last step whose loss was seen to be finite and whose row is on disk.
            wait: block until all of them are answered.

        Raises:
            tinker.TinkerError: a save failed.
        """
        written = []
        while self._pending and self._pending[0].step <= proven_step:
            if not wait and not self._pending[0].answered():
                break
            save = self._pending.popleft()
            epoch, batch = self._position(save.step)
            record = CheckpointRecord(
                name=save.name,
                step=save.step,
                epoch=epoch,
                batch=batch,
                state_path=save.state.result().path,
                sampler_path=self._sampler_path(save),
                final=save.final,
            )
            jsonl.append(self._folder.path / checkpoints.FILE_NAME, record.to_row())
            self.last = record
            written.append(record)
        return written

    def _sampler_path(self, save: _PendingSave) -> str:
        """The saved path, also when the SDK repeated a save that had succeeded and got a 409."""
        import tinker

        try:
            return save.sampler.result().path
        except tinker.ConflictError:
            path = f"tinker://{self._client.model_id}/sampler_weights/{save.name}"
            self._rest.get_weights_info_by_tinker_path(path).result()  # raises if it is not there
            return path
