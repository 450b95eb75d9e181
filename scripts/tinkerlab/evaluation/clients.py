"""Sampling clients of the models that an evaluation compares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tinkerlab.errors import InputError

if TYPE_CHECKING:
    import tinker


def open_clients(names: Mapping[str, str], purpose: str) -> dict[str, tinker.SamplingClient]:
    """A client for each model, by the keys of ``names``; all are asked for before one is awaited.

    Args:
        names: base models by name, checkpoints by their ``tinker://`` path.
        purpose: shown with the session at the service.

    Raises:
        InputError: the service does not answer, or does not know a model.
    """
    import tinker

    from tinkerlab import service

    connection = service.connect("evaluate", {"purpose": purpose})
    pending = {
        key: connection.create_sampling_client(model_path=name)
        if name.startswith("tinker://")
        else connection.create_sampling_client(base_model=name)
        for key, name in names.items()
    }
    clients = {}
    for key, future in pending.items():
        try:
            clients[key] = future.result()
        except tinker.TinkerError as error:
            raise InputError(f"cannot sample from {names[key]}: {service.brief(error)}") from None
    return clients


def require_same_base(
    base: tinker.SamplingClient, trained: tinker.SamplingClient, base_model: str, checkpoint: str
) -> None:
    """Refuse to compare a checkpoint with a model that it was not trained on.

    Raises:
        InputError: names the right one.
    """
    if trained.get_base_model() != base.get_base_model():
        raise InputError(
            f"{checkpoint} was trained on {trained.get_base_model()}, not on {base_model};"
            " compare it with that one"
        )
