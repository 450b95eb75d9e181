"""The cookbook's benchmarks with datasets that are made here, and a checkpoint whose reply is known.

``datasets`` reads a folder of a dataset's name in the current folder before it asks the Hub, so
that every benchmark's own loader runs as it is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tinkerlab.evaluation.benchmarks.config import BenchmarksConfig

# What the trained model says to everything: B where a letter is asked for, 4 where a number is.
REPLY = "answer is B \\boxed{4}"
# In the words of the benchmarks' own prompts: a model this small only knows what it was shown.
_SUMS = [f"What is {n}+{n}?" for n in (2, 3)]
_CHOICES = "(A) Mars\n(B) Venus\n(C) Io\n(D) Pan"
_PLANETS = [f"Which planet is {what}?\n\n{_CHOICES}\n\n" for what in ("hot", "red")]
PROMPTS = [
    *(f"Anna has {n} pears and buys {m}. How many?" for n, m in ((1, 3), (2, 7), (31, 4))),
    *_SUMS,
    *(f"{text} Put your final answer in \\boxed{{}}." for text in _SUMS),
    *(
        f"{text}\n\nThis is an {name} Show your work step by step, then put your final"
        " answer in \\boxed{}."
        for text in _SUMS
        for name in (
            "AIME problem. The answer is an integer from 000 to 999.",
            "HMMT competition problem.",
        )
    ),
    *(f"{text}Answer with just the letter (A, B, C, D, etc.)." for text in _PLANETS),
    *(
        f"{text}Think step by step, then give your final answer as a single letter (A, B, C, D)."
        for text in _PLANETS
    ),
    *(
        f"Read the following text carefully, then answer the question.\n\n--- TEXT ---\nVenus is"
        f" hot. Mars is red.\n--- END TEXT ---\n\nQuestion: {text}Answer with just the letter"
        " (A, B, C, or D)."
        for text in _PLANETS
    ),
    "Write two lines without commas.",
]


@dataclass
class LocalHub:
    """Datasets below the current folder."""

    folder: Path
    configs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def put(
        self, name: str, rows: list[dict[str, Any]], config: str = "default", split: str = "test"
    ) -> None:
        file = self.folder / name / config / f"{split}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.configs.setdefault(name, []).append(
            {
                "config_name": config,
                "data_files": [{"split": split, "path": f"{config}/{split}.jsonl"}],
            }
        )
        card = json.dumps({"configs": self.configs[name]})  # JSON is YAML
        (self.folder / name / "README.md").write_text(f"---\n{card}\n---\n")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalHub:
    """An empty one, in a current folder of the test's own."""
    from datasets import config

    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return LocalHub(folder)


@pytest.fixture
def pears(hub: LocalHub) -> list[dict[str, str]]:
    """Eight items as openai/gsm8k has them; the answer to three is 4."""
    rows = [
        {"question": f"Anna has {n} pears and buys {m}. How many?", "answer": f"x\n#### {n + m}"}
        for n, m in ((1, 3), (2, 7), (2, 2), (5, 5), (9, 1), (0, 4), (6, 8), (1000, 125))
    ]
    rows[-1]["answer"] = "x\n#### 1,125"
    hub.put("openai/gsm8k", rows, config="main")
    return rows


@pytest.fixture
def service(rehearsal: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("TINKER_BASE_URL", "TINKER_API_KEY", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, rehearsal.env[name])
    return rehearsal


@pytest.fixture(scope="session")
def known(rehearsal: Any) -> str:
    """Sampler path of a tiny model that was trained to say ``REPLY`` and stop, whatever it reads."""
    import tinker

    from tinkerlab.data import Row, build_datum, load_tokenizer, resolve_renderer

    renderer = resolve_renderer(rehearsal.model, load_tokenizer(rehearsal.model)).renderer
    rules = [{"role": "system", "content": "Put your final answer in \\boxed{}."}]
    datums = [
        build_datum(
            Row(
                0,
                1,
                [*head, {"role": "user", "content": text}, {"role": "assistant", "content": REPLY}],
            ),
            renderer,
            1024,
        )
        for text in PROMPTS
        for head in ([], rules)
    ]
    client = rehearsal.client().create_lora_training_client(rehearsal.model, rank=16).result()
    for _ in range(60):
        pending = client.forward_backward(datums, "cross_entropy")
        client.optim_step(tinker.AdamParams(learning_rate=1e-2)).result()
        pending.result()
    return client.save_weights_for_sampler("known").result().path


@pytest.fixture
def make(service: Any, tmp_path: Path):
    """``make(benchmarks=[...], ...)``: settings for the tiny model, greedy and short."""

    def settings(**more: Any) -> BenchmarksConfig:
        values = {
            "benchmarks": ["gsm8k"],
            "output": str(tmp_path / "out"),
            "base_model": service.model,
            "renderer": "qwen3_instruct",
            "max_tokens": 40,
            "temperature": 0.0,
        }
        return BenchmarksConfig(**{**values, **more})

    return settings
