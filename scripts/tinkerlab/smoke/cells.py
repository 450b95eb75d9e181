"""The cells of the matrix: what each trains, with which command, for how much."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tinkerlab.errors import InputError
from tinkerlab.folders import make_folder
from tinkerlab.planning import cost
from tinkerlab.planning.prices import PriceTable
from tinkerlab.runs import jsonl

SCRIPTS = Path(__file__).resolve().parents[2]
REWARD = f"{Path(__file__).with_name('reward.py')}:lower_case_share"
PROMPT = "What is {} + {}? Answer with the number alone."

STEPS = 2
ROWS = 24
SFT_BATCH = 4
GROUPS = 2
PREFLIGHT_GROUPS = 2
# For the price only, and generous: the prompt with the markers and the system message that some
# renderers add, and the answer.
PROMPT_TOKENS, ANSWER_TOKENS = 120, 20


@dataclass(frozen=True)
class Settings:
    """What every cell of one matrix shares.

    Attributes:
        service: where it runs: ``rehearsal``, ``hosted``, or an address.
        reward: of the GRPO cells, as ``rl_trainer.py`` takes it.
    """

    service: str
    max_tokens: int = 96
    lora_rank: int = 8
    group_size: int = 4
    reward: str = REWARD

    @property
    def rehearsed(self) -> bool:
        return self.service == "rehearsal"


@dataclass(frozen=True)
class Cell:
    """One family and one method."""

    family: str
    method: str
    model: str
    settings: Settings

    @property
    def name(self) -> str:
        return f"{self.family}-{self.method}"

    def identity(self) -> dict[str, Any]:
        """What must be the same for an earlier outcome to count."""
        return {"model": self.model, **asdict(self.settings)}

    def training(self, inputs: Path, run: Path) -> list[str]:
        """The trainer's arguments after ``python``.

        Args:
            inputs: the folder of ``write_inputs``.
            run: the run folder that it makes.
        """
        shared = {
            "base_model": self.model,
            "log_path": run,
            "run_name": f"smoke-{self.name}",
            "num_steps": STEPS,
            "lora_rank": self.settings.lora_rank,
            # tinker-cookbook's formula covers Qwen and Llama only; two steps need no tuned rate.
            "learning_rate": "1e-4",
            "eval_every": 0,
        }
        if self.method == "sft":
            special = {
                "train_file": inputs / "chats.jsonl",
                "val_fraction": 0,
                "train_batch_size": SFT_BATCH,
                "max_seq_len": 512,
            }
            script = "sl_trainer.py"
        else:
            special = {
                "dataset": inputs / "tasks.jsonl",
                "reward": self.settings.reward,
                "max_eval_tasks": 0,
                "groups_per_batch": GROUPS,
                "group_size": self.settings.group_size,
                "preflight_groups": PREFLIGHT_GROUPS,
                "max_tokens": self.settings.max_tokens,
            }
            script = "rl_trainer.py"
        words = (f"{key}={value}" for key, value in {**shared, **special}.items())
        return [str(SCRIPTS / script), *words]

    def sampling(self, run: Path) -> list[str]:
        """The arguments that sample from the run's checkpoint, and from its base beside it."""
        return [
            str(SCRIPTS / "checkpoint_compare.py"), "--run", str(run), "--prompt",
            PROMPT.format(3, 4), "--max-tokens", str(self.settings.max_tokens), "--json",
        ]  # fmt: skip

    def usage(self) -> cost.Usage:
        """The tokens that it uses at most, sampling from the checkpoint included."""
        longest = self.settings.max_tokens
        # The reply of the base model and the checkpoint's, for checkpoint_compare.py.
        prefill, sample = 2 * PROMPT_TOKENS, 2 * longest
        if self.method == "sft":
            train = STEPS * SFT_BATCH * (PROMPT_TOKENS + ANSWER_TOKENS)
            return cost.Usage(steps=STEPS, train=train, prefill=prefill, sample=sample)

        def sampled(steps: int, groups: int) -> cost.Usage:
            return cost.rl_usage(
                steps=steps,
                groups=groups,
                group_size=self.settings.group_size,
                prompt_tokens=PROMPT_TOKENS,
                completion_tokens=longest,
            )

        trained, before = sampled(STEPS, GROUPS), sampled(1, PREFLIGHT_GROUPS)
        return cost.Usage(
            steps=STEPS,
            train=trained.train,
            prefill=prefill + trained.prefill + before.prefill,
            cached=trained.cached + before.cached,
            sample=sample + trained.sample + before.sample,
        )

    def price(self, table: PriceTable) -> float | None:
        """USD on the hosted service, at most; None where the table has no price."""
        try:
            return cost.estimate(self.model, self.usage(), table).total_usd
        except InputError:
            return None


def make_cells(models: Mapping[str, str], methods: Sequence[str], settings: Settings) -> list[Cell]:
    """Every family with every method, in the order given."""
    return [
        Cell(family, method, model, settings)
        for family, model in models.items()
        for method in methods
    ]


def write_inputs(folder: Path) -> None:
    """The sums that every cell trains on: ``chats.jsonl`` and ``tasks.jsonl``.

    Raises:
        InputError: the folder can't be made.
    """
    make_folder(folder)
    sums = [(number, (number * 7) % 10) for number in range(ROWS)]
    prompts = [(PROMPT.format(a, b), str(a + b)) for a, b in sums]
    jsonl.rewrite(
        folder / "chats.jsonl", [{"prompt": p, "completion": answer} for p, answer in prompts]
    )
    jsonl.rewrite(
        folder / "tasks.jsonl", [{"prompt": p, "answer": answer} for p, answer in prompts]
    )


def shown(command: Sequence[str]) -> str:
    """A command for people to copy."""
    return shlex.join(["python", *command])
