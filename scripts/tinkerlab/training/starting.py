"""Where training starts when it does not start from the base model: an earlier run's weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tinkerlab import service
from tinkerlab.errors import InputError
from tinkerlab.runs import checkpoints

if TYPE_CHECKING:
    import tinker


def require_trainable(path: str | None, setting: str = "load_checkpoint_path") -> None:
    """Refuse a path of sampler weights.

    Raises:
        ValueError: it is one.
    """
    if path and "/sampler_weights/" in path:
        raise ValueError(
            f"{setting} {path}: sampler weights cannot be trained; give the weights path"
            " (state_path in the run's checkpoints.jsonl)"
        )


def resolve_checkpoint(path: str | None, setting: str = "load_checkpoint_path") -> str | None:
    """The training state that ``path`` means: itself, or a run folder's newest.

    Raises:
        InputError: neither a ``tinker://`` path nor a run folder with a checkpoint.
    """
    if path is None or path.startswith("tinker://"):
        return path
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise InputError(
            f"{setting} {path}: neither a tinker://<run>/weights/<name> path nor a run folder"
        )
    states = [record.state_path for record in checkpoints.read(folder) if record.state_path]
    if not states:
        raise InputError(f"{setting} {path}: this run folder records no checkpoint")
    return states[-1]


def client_from(
    connection: tinker.ServiceClient,
    path: str,
    *,
    base_model: str,
    lora_rank: int,
    metadata: dict[str, str],
) -> tinker.TrainingClient:
    """A training client with the weights of ``path`` and a fresh optimizer.

    Raises:
        InputError: the service has no such state, or it is of another model or rank.
    """
    try:
        info = service.rest_client().get_weights_info_by_tinker_path(path).result()
    except service.refusals() as error:
        raise InputError(
            f"load_checkpoint_path {path}: {service.brief(error)}; it expired, was deleted, or"
            " TINKER_BASE_URL points elsewhere"
        ) from None
    if info.base_model != base_model:
        raise InputError(
            f"load_checkpoint_path {path}: its base model is {info.base_model}, not {base_model};"
            f" set base_model={info.base_model}"
        )
    if info.lora_rank and info.lora_rank != lora_rank:
        raise InputError(
            f"load_checkpoint_path {path}: its rank is {info.lora_rank}, not {lora_rank};"
            f" set lora_rank={info.lora_rank}"
        )
    return connection.create_training_client_from_state(path, user_metadata=metadata).result()
