"""Run the service in this process until it is told to stop."""

from __future__ import annotations

import fcntl
import logging
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import uvicorn
from tinker import types

from tinkerlab.errors import InputError
from tinkerlab.rehearsal.models.registry import ModelSource
from tinkerlab.rehearsal.service.app import build_app
from tinkerlab.rehearsal.service.faults import Faults
from tinkerlab.rehearsal.service.state import State

# The only address that a rehearsal ever listens on: it checks no keys and bills nobody.
LOOPBACK = "127.0.0.1"


def client_config(flags: list[str]) -> types.ClientConfigResponse:
    """The feature flags that clients are told, from ``name=value`` pairs.

    By default keys are exchanged for tokens, as the hosted service does, so that ``whoami``
    works; everything else keeps the SDK's default.

    Raises:
        InputError: no such flag, or a value of another type.
    """
    values: dict[str, object] = {"pjwt_auth_enabled": True}
    for flag in flags:
        name, _, value = flag.partition("=")
        if name not in types.ClientConfigResponse.model_fields:
            known = ", ".join(types.ClientConfigResponse.model_fields)
            raise InputError(f"--client-flag {flag}: no flag {name!r}; the SDK knows {known}")
        if name == "custom_loss_server_side":
            raise InputError(f"--client-flag {flag}: the rehearsal runs no custom losses")
        values[name] = value
    try:
        return types.ClientConfigResponse.model_validate(values, strict=False)
    except ValueError as error:
        raise InputError(f"--client-flag: {str(error).splitlines()[-1].strip()}") from None


def lock_store(store: Path) -> object:
    """Take the store for this process; the lock lasts as long as the returned object.

    Raises:
        InputError: another rehearsal uses it, or it can't be written.
    """
    try:
        store.mkdir(parents=True, exist_ok=True)
        handle = (store / "lock").open("w")
    except OSError as error:
        raise InputError(f"--store {store}: can't be written ({error.strerror})") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise InputError(
            f"--store {store} is in use by another rehearsal: stop it, or name another --store"
        ) from None
    return handle


def bind(port: int) -> socket.socket:
    """A listening socket on the loopback address; port 0 takes a free one.

    Raises:
        InputError: the port is taken.
    """
    # The protocol is named because asyncio switches Nagle's delay off only for sockets that say
    # that they are TCP; with it on, every answer waits 40 ms for the client's acknowledgement.
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((LOOPBACK, port))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"--port {port}: {reason}; leave it out to take a free port") from None
    return sock


def serve(
    sources: list[ModelSource],
    store: Path,
    sock: socket.socket,
    *,
    config: types.ClientConfigResponse,
    faults: Faults,
    until_stdin_closes: bool,
    announce: Callable[[], None],
) -> None:
    """Load the models, call ``announce`` once requests are answered, and serve until stopped."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    lock = lock_store(store)
    state = State(sources, store, client_config=config, faults=faults)
    server = _Server(
        uvicorn.Config(
            build_app(state),
            log_level="warning",
            lifespan="off",
            # Clients that wait in a long poll ask again; don't wait for them.
            timeout_graceful_shutdown=1,
            # The SDK keeps idle connections for long; dropping one in use looks like a fault.
            timeout_keep_alive=120,
        ),
        announce,
    )
    if until_stdin_closes:
        threading.Thread(target=_stop_at_end_of_input, args=(server,), daemon=True).start()
    try:
        server.run(sockets=[sock])
    finally:
        state.close()
        del lock


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announce()


def _stop_at_end_of_input(server: uvicorn.Server) -> None:
    sys.stdin.buffer.read()
    server.should_exit = True
