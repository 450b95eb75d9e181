"""Connect to a Tinker service, and put its refusals into one line that says what to do."""

from __future__ import annotations

import json
import logging
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkerlab.errors import InputError

if TYPE_CHECKING:
    import tinker

REACHABLE_SECONDS = 20.0
REHEARSE = "without a service, rehearse locally: python scripts/rehearse.py run -- <this command>"

CREDENTIALS = ("TINKER_API_KEY", "TINKER_CREDENTIAL_CMD")


def has_credential() -> bool:
    """Whether the environment or the SDK's own file names a credential; it is not tried."""
    stored = Path("~/.tinker/credentials.json").expanduser()
    return any(os.environ.get(name) for name in CREDENTIALS) or stored.is_file()


def connect(run_name: str, metadata: dict[str, str]) -> tinker.ServiceClient:
    """A service client whose credential and address are known to work.

    Raises:
        InputError: no key, a refused key, missing billing, or nobody answers.
    """
    import tinker

    address = os.environ.get("TINKER_BASE_URL") or "the hosted service"
    require_reachable(address)
    try:
        tinker.auth.raise_if_tinker_not_accessible()
    except tinker.AuthenticationError as error:
        raise InputError(
            f"{address} refused the API key ({brief(error)}); set TINKER_API_KEY to a valid one"
        ) from None
    except tinker.BillingError as error:
        raise InputError(f"{address}: billing is not set up ({brief(error)})") from None
    except tinker.TinkerError as error:
        raise InputError(f"can't use {address}: {brief(error)}; {REHEARSE}") from None
    _quiet_waiting()
    return tinker.ServiceClient(user_metadata=metadata, display_name=run_name)


def _quiet_waiting() -> None:
    """Drop the SDK's warning for each answer that takes longer than one long poll.

    A busy service gives one for every request and every half minute; waiting is no fault.
    """
    logging.getLogger("tinker.lib.api_future_impl").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return "try_again" not in record.getMessage()


def require_reachable(address: str) -> None:
    """Fail at once where the SDK, whose first request is repeated for five minutes, would hang.

    Raises:
        InputError: nobody answers at the service's address; any HTTP answer will do.
    """
    from tinker.lib.base_url import resolve_base_url

    url = f"{resolve_base_url()}/api/v1/healthz"
    try:
        with urllib.request.urlopen(url, timeout=REACHABLE_SECONDS):  # noqa: S310
            return
    except urllib.error.HTTPError:
        return
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise InputError(f"{address} does not answer ({reason}); {REHEARSE}") from None


def rest_client() -> tinker.RestClient:
    """A REST client of the service that the environment names now.

    ``tinker.RestClient()`` without an address is made once for the whole process: after
    TINKER_BASE_URL changes it goes on asking the service that was there before.
    """
    import tinker

    return tinker.RestClient(base_url=os.environ.get("TINKER_BASE_URL") or None)


def service_errors() -> tuple[type[Exception], ...]:
    """What the SDK raises when the service refuses, can't be reached, or answers nonsense."""
    import tinker
    from google.protobuf.message import DecodeError

    return (tinker.TinkerError, json.JSONDecodeError, DecodeError)


def refusals() -> tuple[type[Exception], ...]:
    """What the SDK raises when the service does not want the request as it stands."""
    import tinker

    return (
        tinker.BadRequestError,
        tinker.NotFoundError,
        tinker.UnprocessableEntityError,
        tinker.RequestFailedError,
    )


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
    except refusals() as error:
        raise InputError(
            f"the service refused an adapter of rank {rank} on base_model {base_model}:"
            f" {brief(error)}{_served()}"
        ) from None


def _served() -> str:
    """``; it serves a, b`` or nothing when the service does not say."""
    import tinker

    try:
        capabilities = rest_client().get_server_capabilities().result(timeout=10)
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
