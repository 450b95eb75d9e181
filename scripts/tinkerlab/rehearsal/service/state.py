"""Everything that one rehearsal service holds, wired together."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from tinker import types

from tinkerlab.rehearsal.engine.types import SamplingResult
from tinkerlab.rehearsal.errors import ServiceError
from tinkerlab.rehearsal.models.registry import ModelSource
from tinkerlab.rehearsal.service.checkpoints import Checkpoints
from tinkerlab.rehearsal.service.faults import Faults
from tinkerlab.rehearsal.service.futures import Futures
from tinkerlab.rehearsal.service.runs import Runs
from tinkerlab.rehearsal.service.served import ServedModel, ServedModels
from tinkerlab.rehearsal.service.store import Store
from tinkerlab.rehearsal.service.worker import Worker

logger = logging.getLogger("tinkerlab.rehearsal")


class State:
    """The service's parts, handed to the routes."""

    def __init__(
        self,
        sources: list[ModelSource],
        store: Path,
        *,
        client_config: types.ClientConfigResponse,
        faults: Faults,
    ) -> None:
        self.store = Store(store)
        self.checkpoints = Checkpoints(self.store)
        self.futures = Futures(self.store)
        self.runs = Runs(self.store)
        self.models = ServedModels(sources)
        self.worker = Worker("training")
        self.client_config = client_config
        self.faults = faults
        # Signs download URLs; a restart ends the old ones, as their expiry would.
        self.url_secret = secrets.token_bytes(32)
        self.heartbeats: dict[str, float] = {}
        # Samples in progress, for cancellation.
        self.sampling: dict[str, tuple[ServedModel, Future[SamplingResult]]] = {}

    def fulfil(self, request_id: str, work: Callable[[], bytes | dict[str, Any]]) -> None:
        """Do ``work`` now, on this thread, and store its result or its failure."""
        try:
            self.futures.finish(request_id, work())
        except ServiceError as error:
            self.futures.fail(request_id, error.message, "user")
        except Exception as error:
            logger.exception("request %s failed", request_id)
            self.futures.fail(request_id, f"{type(error).__name__}: {error}", "server")

    def close(self) -> None:
        self.worker.close()
        self.models.close()
        self.store.close()
