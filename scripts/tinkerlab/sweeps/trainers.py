"""The trainers that a sweep can start, and the config class that each one's settings must fit."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinkerlab.errors import InputError

SCRIPTS = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Trainer:
    """One of this project's trainers.

    Attributes:
        module, config_class: where its settings are declared; imported when needed.
    """

    script: str
    module: str
    config_class: str

    @property
    def path(self) -> Path:
        return SCRIPTS / self.script

    def load(self, base: Path | None, overrides: Sequence[str]) -> dict[str, Any]:
        """Every setting of one run, as the trainer itself would read them.

        Raises:
            InputError: what the trainer would refuse: unknown keys, wrong types, bad values, no
                recommended learning rate for the model.
        """
        from tinkerlab.training import config as configs
        from tinkerlab.training.run import peak_learning_rate

        module = importlib.import_module(self.module)
        cls = getattr(module, self.config_class)
        elsewhere: Mapping[str, str] | None = getattr(module, "ELSEWHERE", None)
        config = configs.load(cls, base, overrides, elsewhere)
        peak_learning_rate(config)
        return dict(configs.to_dict(config))


TRAINERS = {
    trainer.script: trainer
    for trainer in (
        Trainer("sl_trainer.py", "tinkerlab.training.supervised_config", "SupervisedConfig"),
        Trainer("rl_trainer.py", "tinkerlab.training.rl.config", "RLConfig"),
        Trainer("dpo_trainer.py", "tinkerlab.training.dpo.config", "DPOConfig"),
        Trainer("distill_trainer.py", "tinkerlab.training.distill.config", "DistillConfig"),
    )
}


def trainer_named(name: str) -> Trainer:
    """The trainer of a script's name, with or without a folder before it.

    Raises:
        InputError: it is none of them.
    """
    found = TRAINERS.get(Path(name).name)
    if found is None:
        raise InputError(f"trainer {name!r}: choose one of {', '.join(TRAINERS)}")
    return found
