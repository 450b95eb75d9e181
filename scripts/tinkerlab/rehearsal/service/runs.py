"""Training runs: which are live, and whose turn it is."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from tinkerlab.rehearsal.engine.training import TrainableAdapter
from tinkerlab.rehearsal.errors import Gone, NotFound
from tinkerlab.rehearsal.service.ordering import RequestOrder
from tinkerlab.rehearsal.service.served import ServedModel
from tinkerlab.rehearsal.service.store import Store


@dataclass
class Run:
    """A training run of this process; ``adapter`` is None until its creation was worked off."""

    model_id: str
    base_model: str
    lora: dict[str, Any]
    model: ServedModel
    order: RequestOrder
    adapter: TrainableAdapter | None = None
    failure: str | None = None

    def ready(self) -> TrainableAdapter:
        """The adapter, for work whose turn has come.

        Raises:
            Gone: the run could not be created.
        """
        if self.adapter is None:
            raise Gone(f"training run {self.model_id} was not created: {self.failure}")
        return self.adapter

    def record(self) -> dict[str, Any]:
        """What a checkpoint remembers of its run."""
        return {"base_model": self.base_model, "lora": self.lora}


class Runs:
    """The live training runs by model id, and the records of all that ever were."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._live: dict[str, Run] = {}

    def add(self, run: Run, session_id: str, user_metadata: dict[str, Any] | None) -> None:
        self._live[run.model_id] = run
        now = time.time()
        self._store.insert(
            "runs",
            model_id=run.model_id,
            session_id=session_id,
            base_model=run.base_model,
            lora=run.lora,
            user_metadata=user_metadata,
            created=now,
            last_request=now,
        )

    def live(self, model_id: str) -> Run:
        """The run that ``model_id`` names, ready to take a request.

        Raises:
            NotFound: there never was such a run.
            Gone: the service restarted since; its weights live on in checkpoints only.
        """
        run = self._live.get(model_id)
        if run is None:
            if self._store.one("runs", "model_id", model_id) is None:
                raise NotFound(f"no training run {model_id}")
            raise Gone(
                f"training run {model_id} ended when the rehearsal restarted; go on from its last"
                " checkpoint with create_training_client_from_state_with_optimizer"
            )
        self._store.update("runs", "model_id", model_id, last_request=time.time())
        return run

    def record(self, model_id: str) -> dict[str, Any]:
        """The stored record of a run, live or not.

        Raises:
            NotFound: there never was such a run.
        """
        row = self._store.one("runs", "model_id", model_id)
        if row is None:
            raise NotFound(f"no training run {model_id}")
        return row
