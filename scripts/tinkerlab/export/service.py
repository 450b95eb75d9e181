"""What an export asks of the Tinker service (hosted, or the rehearsal: the same calls)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tinkerlab import service
from tinkerlab.errors import CheckFailed
from tinkerlab.export.behaviour import Logprobs, service_logprobs


class Service:
    """One connection; a context manager that closes its session."""

    def __init__(self) -> None:
        self._client = service.connect("export", {"created_by": "export_model.py"})
        self._status: Any = "errored"

    def __enter__(self) -> Service:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        self._client.close("errored" if kind else "success").result()

    def base_model(self, checkpoint: str) -> str:
        """Return the name of the model that ``checkpoint`` was trained on.

        Raises:
            CheckFailed: the service doesn't know the checkpoint.
        """
        with _told(f"the service doesn't show {checkpoint}"):
            weights = service.rest_client().get_weights_info_by_tinker_path(checkpoint).result()
            return weights.base_model

    def base_logprobs(self, model: str, sequences: Sequence[Sequence[int]]) -> Logprobs:
        """Score ``sequences`` with the untrained ``model``."""
        with _told(f"the service can't score with {model}"):
            client = self._client.create_sampling_client(base_model=model).result()
            return service_logprobs(client, sequences)

    def trained_logprobs(self, checkpoint: str, sequences: Sequence[Sequence[int]]) -> Logprobs:
        """Score ``sequences`` with the adapter of ``checkpoint``.

        A training checkpoint can't be sampled from, so its weights are loaded into a new run
        and handed to a sampler, without a checkpoint of their own.
        """
        import tinker

        kind = tinker.ParsedCheckpointTinkerPath.from_tinker_path(checkpoint).checkpoint_type
        with _told(f"the service can't sample from {checkpoint} (is there a --sampler for it?)"):
            if kind == "sampler":
                client = self._client.create_sampling_client(model_path=checkpoint).result()
            else:
                trainer = self._client.create_training_client_from_state(
                    checkpoint, user_metadata={"created_by": "export_model.py"}
                ).result()
                client = trainer.save_weights_and_get_sampling_client().result()
            return service_logprobs(client, sequences)


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Turn the SDK's refusals into one line."""
    import tinker

    try:
        yield
    except tinker.TinkerError as error:
        raise CheckFailed(f"{what}: {' '.join(str(error).split())}") from error
