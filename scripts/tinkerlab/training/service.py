"""Connect to a Tinker service, and put its refusals into one line that says what to do."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tinkerlab.errors import InputError

if TYPE_CHECKING:
    import tinker


def connect(run_name: str, metadata: dict[str, str]) -> tinker.ServiceClient:
    """A service client whose credential and address are known to work.

    Raises:
        InputError: no key, a refused key, missing billing, or nobody answers.
    """
    import tinker

    address = os.environ.get("TINKER_BASE_URL") or "the hosted service"
    try:
        tinker.auth.raise_if_tinker_not_accessible()
    except tinker.AuthenticationError as error:
        raise InputError(
            f"{address} refused the API key ({brief(error)}); set TINKER_API_KEY to a valid one"
        ) from None
    except tinker.BillingError as error:
        raise InputError(f"{address}: billing is not set up ({brief(error)})") from None
    except tinker.APIConnectionError as error:
        raise InputError(
            f"{address} does not answer ({brief(error)}); without a key, rehearse locally:"
            " python scripts/rehearse.py run -- <this command>"
        ) from None
    except tinker.TinkerError as error:
        raise InputError(
            f"can't use {address}: {brief(error)}; without a key, rehearse locally:"
            " python scripts/rehearse.py run -- <this command>"
        ) from None
    return tinker.ServiceClient(user_metadata=metadata, display_name=run_name)


def create_adapter(
    service: tinker.ServiceClient,
    base_model: str,
    *,
    rank: int,
    seed: int,
    train_mlp: bool,
    train_attn: bool,
    train_unembed: bool,
    metadata: dict[str, str],
) -> tinker.TrainingClient:
    """A fresh LoRA adapter on ``base_model``.

    Raises:
        InputError: the service refuses the model or the adapter; names what it serves.
    """
    import tinker

    try:
        return service.create_lora_training_client(
            base_model,
            rank=rank,
            seed=seed,
            train_mlp=train_mlp,
            train_attn=train_attn,
            train_unembed=train_unembed,
            user_metadata=metadata,
        ).result()
    except (
        tinker.BadRequestError,
        tinker.NotFoundError,
        tinker.UnprocessableEntityError,
        tinker.RequestFailedError,
    ) as error:
        raise InputError(
            f"the service refused an adapter of rank {rank} on base_model {base_model}:"
            f" {brief(error)}{_served()}"
        ) from None


def _served() -> str:
    """``; it serves a, b`` or nothing when the service does not say."""
    import tinker

    try:
        capabilities = tinker.RestClient().get_server_capabilities().result(timeout=10)
        names = sorted(m.model_name for m in capabilities.supported_models if m.model_name)
    except (tinker.TinkerError, TimeoutError):
        return ""
    return f"; it serves {', '.join(names)}" if names else ""


def brief(error: BaseException) -> str:
    """An SDK error in one line, without the wrapping that repeats its status code."""
    body: Any = getattr(error, "body", None)
    if isinstance(body, dict) and isinstance(body.get("detail"), str):
        text = body["detail"]
    else:
        text = str(error) or type(error).__name__
    line = " ".join(text.split())
    return line if len(line) <= 300 else f"{line[:297]}..."
