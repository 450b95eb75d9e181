"""The base models that one rehearsal serves, each loaded once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path

from tinkerlab.rehearsal.engine.adapter import FrozenAdapter
from tinkerlab.rehearsal.engine.base import BaseModel
from tinkerlab.rehearsal.engine.sampling import Sampler
from tinkerlab.rehearsal.errors import UserError
from tinkerlab.rehearsal.models.registry import ModelSource

# Frozen adapters kept in memory for sampling; others are read from the store again.
_ADAPTERS_IN_MEMORY = 8


class ServedModel:
    """A base model with its sampler and the adapters that are being sampled."""

    def __init__(self, source: ModelSource) -> None:
        self.name = source.name
        self.directory = source.directory
        self.base = BaseModel.load(source)
        self.sampler = Sampler(self.base)
        self._adapters: OrderedDict[Path, FrozenAdapter] = OrderedDict()
        self._lock = threading.Lock()

    def adapter(self, folder: Path) -> FrozenAdapter:
        """The frozen adapter saved in ``folder``."""
        with self._lock:
            adapter = self._adapters.get(folder)
            if adapter is None:
                adapter = FrozenAdapter.load(self.base, folder)
            self._keep(folder, adapter)
            return adapter

    def keep_adapter(self, folder: Path, adapter: FrozenAdapter) -> None:
        """Put weights that were just saved to ``folder`` where the next sample finds them."""
        with self._lock:
            self._keep(folder, adapter)

    def _keep(self, folder: Path, adapter: FrozenAdapter) -> None:
        self._adapters[folder] = adapter
        self._adapters.move_to_end(folder)
        while len(self._adapters) > _ADAPTERS_IN_MEMORY:
            self._adapters.popitem(last=False)


class ServedModels:
    """Finds a served model by the name that a client gives."""

    def __init__(self, sources: list[ModelSource]) -> None:
        self._models = {source.name: ServedModel(source) for source in sources}
        self._by_folder = {str(model.directory): model for model in self._models.values()}

    def get(self, name: str) -> ServedModel:
        """The model served under ``name``; ``name:peft:<length>`` means the same model, and so
        does its folder, which scripts pass where they need a tokenizer without a hub.

        Raises:
            UserError: this rehearsal serves no such model.
        """
        stem = name.split(":peft:")[0]
        model = self._models.get(stem) or self._by_folder.get(stem)
        if model is None:
            raise UserError(
                f"base_model {name!r} is not served here; served: {', '.join(self._models)}."
                " Start the rehearsal with --model or --alias to serve another"
            )
        return model

    def all(self) -> list[ServedModel]:
        return list(self._models.values())

    def close(self) -> None:
        for model in self._models.values():
            model.sampler.close()
