"""Training runs, right and wrong, that really train on a rehearsal and leave a run folder."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tinker
from tinker import types

from tinkerlab.runs import jsonl, metrics

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def sentences(count: int, seed: int = 0) -> list[str]:
    """Short texts that a tiny model can learn the letters of."""
    chosen = random.Random(seed)
    return [" ".join(chosen.choices(WORDS, k=8)) for _ in range(count)]


def datum(text: str, *, per_example: bool = True) -> tinker.Datum:
    """All tokens (bytes) of ``text``; the weights sum to 1, or are 1 each."""
    tokens = list(text.encode())
    count = len(tokens) - 1
    weight = 1.0 / count if per_example else 1.0
    inputs: dict[str, Any] = {
        "target_tokens": tokens[1:],
        "weights": np.full(count, weight, np.float32),
    }
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)


def mean_nll(data: Sequence[tinker.Datum], output: tinker.ForwardBackwardOutput) -> float:
    """Mean NLL per token over the examples, in nats."""
    total = [-float(np.mean(fields["logprobs"].to_numpy())) for fields in output.loss_fn_outputs]
    return float(np.mean(total))


@dataclass
class Loop:
    """A plain training loop over the SDK that writes what tinker-cookbook's writes.

    Attributes:
        rate: the learning rate at a step.
        update: whether optim_step is submitted (a script may forget it).
        held_out: scored every ``eval_every`` steps.
    """

    client: tinker.TrainingClient
    folder: Path
    total: int
    rate: Callable[[int], float] = lambda _: 1e-2
    batch: Callable[[int], list[tinker.Datum]] = lambda step: [
        datum(text) for text in sentences(8, seed=step)
    ]
    update: bool = True
    held_out: Sequence[tinker.Datum] = ()
    eval_every: int = 5

    def run(self, start: int = 0, stop: int | None = None) -> None:
        """Train the steps ``start .. stop - 1``."""
        for step in range(start, self.total if stop is None else stop):
            began = time.monotonic()
            data = self.batch(step)
            made = time.monotonic()
            row: dict[str, Any] = {"epoch": 0, "progress": (step + 1) / self.total}
            if self.held_out and step % self.eval_every == 0:
                scored = self.client.forward(list(self.held_out), "cross_entropy").result()
                row["test/nll"] = mean_nll(self.held_out, scored)
            future = self.client.forward_backward(data, "cross_entropy")
            if self.update:
                rate = self.rate(step)
                self.client.optim_step(types.AdamParams(learning_rate=rate)).result()
            output = future.result()
            row |= {
                "learning_rate": self.rate(step),
                "num_sequences": len(data),
                "num_loss_tokens": sum(
                    float(d.loss_fn_inputs["weights"].to_numpy().sum()) for d in data
                ),
                "train_mean_nll": mean_nll(data, output),
                "time/get_batch": made - began,
                "time/total": time.monotonic() - began,
            }
            metrics.append(self.folder, step, row)

    def save(self, updates: int, **label: Any) -> str:
        """Save the state and record it as the checkpoint that holds these updates."""
        path = self.client.save_state(f"{updates:06d}").result().path
        record = {"name": f"{updates:06d}", "batch": updates, "final": False, "state_path": path}
        jsonl.append(self.folder / "checkpoints.jsonl", record | label)
        return path


def config(folder: Path, **settings: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))


def cookbook_sft(server: Any, folder: Path, chats: Path, **settings: Any) -> None:
    """tinker-cookbook's own supervised loop, to its end."""
    from tinker_cookbook.supervised import train
    from tinker_cookbook.supervised.data import FromConversationFileBuilder
    from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig

    values: dict[str, Any] = {
        "learning_rate": 1e-2,
        "lora_rank": 4,
        "num_epochs": 1,
        "save_every": 4,
        "eval_every": 0,
        **settings,
    }
    asyncio.run(
        train.main(
            train.Config(
                log_path=str(folder),
                model_name=str(server.model_dir),
                recipe_name="fault-lab",
                renderer_name="qwen3_instruct",
                dataset_builder=FromConversationFileBuilder(
                    common_config=ChatDatasetBuilderCommonConfig(
                        model_name_for_tokenizer=str(server.model_dir),
                        renderer_name="qwen3_instruct",
                        max_length=64,
                        batch_size=8,
                    ),
                    file_path=str(chats),
                ),
                **values,
            )
        )
    )


def chat_file(folder: Path, count: int) -> Path:
    """Conversations whose answers repeat a few words."""
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"Count {index}."},
                {"role": "assistant", "content": text},
            ]
        }
        for index, text in enumerate(sentences(count))
    ]
    file = folder / "chats.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def cookbook_rl(server: Any, folder: Path, reward: Callable[[str], float], **settings: Any) -> None:
    """tinker-cookbook's own RL loop with a reward on the text of the reply."""
    from tinker_cookbook.rl import train

    values: dict[str, Any] = {
        "learning_rate": 2e-2,
        "lora_rank": 4,
        "max_tokens": 12,
        "eval_every": 0,
        "save_every": 0,
        "remove_constant_reward_groups": False,
        "num_groups_to_log": 0,
        **settings,
    }
    batches = values.pop("batches", 6)
    asyncio.run(
        train.main(
            train.Config(
                log_path=str(folder),
                model_name=str(server.model_dir),
                recipe_name="fault-lab",
                renderer_name="role_colon",
                dataset_builder=_rewarded(server, reward, batches),
                **values,
            )
        )
    )


def _rewarded(server: Any, reward: Callable[[str], float], batches: int) -> Any:
    """A dataset builder for ``cookbook_rl``: one prompt, groups of 8, ``reward`` for each reply."""
    import chz
    from tinker_cookbook import renderers
    from tinker_cookbook.rl.problem_env import ProblemEnv, ProblemGroupBuilder
    from tinker_cookbook.rl.types import RLDataset, RLDatasetBuilder
    from tinker_cookbook.tokenizer_utils import get_tokenizer

    class RewardEnv(ProblemEnv):
        def get_question(self) -> str:
            return "Say something."

        def check_answer(self, sample_str: str) -> bool:
            return bool(reward(sample_str))

        def check_format(self, sample_str: str) -> bool:
            return True

        def get_reference_answer(self) -> str:
            return ""

    renderer = renderers.get_renderer("role_colon", get_tokenizer(str(server.model_dir)))

    class Prompts(RLDataset):
        def get_batch(self, index: int) -> Sequence[Any]:
            return [
                ProblemGroupBuilder(
                    env_thunk=lambda: RewardEnv(renderer, format_coef=0.0), num_envs=8
                )
                for _ in range(4)
            ]

        def __len__(self) -> int:
            return batches

    @chz.chz
    class Builder(RLDatasetBuilder):
        async def __call__(self) -> tuple[RLDataset, None]:
            return Prompts(), None

    return Builder()


def talker(server: Any, client: tinker.ServiceClient, name: str) -> str:
    """Train a random model until it answers with one of ten words and ends; its state's path.

    RL needs such a model: a random one never ends a reply.
    """
    from tinker_cookbook import renderers
    from tinker_cookbook.tokenizer_utils import get_tokenizer

    tokenizer = get_tokenizer(str(server.model_dir))
    renderer = renderers.get_renderer("role_colon", tokenizer)
    prompt = renderer.build_generation_prompt(
        [{"role": "user", "content": "Say something."}]
    ).to_ints()
    end = [tokenizer.eos_token_id]
    examples = []
    for word in WORDS:
        reply = [*tokenizer.encode(" " + word, add_special_tokens=False), *end]
        tokens = [*prompt, *reply]
        weights = np.zeros(len(tokens) - 1, np.float32)
        weights[-len(reply) :] = 1 / len(reply)
        inputs: dict[str, Any] = {"target_tokens": tokens[1:], "weights": weights}
        examples.append(
            tinker.Datum(
                model_input=tinker.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs
            )
        )
    training = client.create_lora_training_client(str(server.model_dir), rank=4, seed=1).result()
    for _ in range(120):
        future = training.forward_backward(examples, "cross_entropy")
        training.optim_step(types.AdamParams(learning_rate=1e-2))
        future.result()
    return training.save_state(name).result().path
