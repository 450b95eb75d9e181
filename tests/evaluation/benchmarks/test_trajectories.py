"""The runner's file as items: order, what was cut, what failed and is asked again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tinkerlab.evaluation.benchmarks import loading, trajectories
from tinkerlab.runs import jsonl


def stored(idx: int, reward: float = 0.0, tokens: int = 3, **more: Any) -> dict[str, Any]:
    """A line as the installed runner writes it."""
    from tinker_cookbook.eval.benchmarks._types import StoredTrajectory, StoredTurn

    turns = [StoredTurn("user", f"Q{idx}", 10), StoredTurn("assistant", f"A{idx}", tokens)]
    values = {"benchmark": "gsm8k", "example_id": f"id{idx}", "turns": turns, "reward": reward}
    return dict(StoredTrajectory(idx=idx, **{**values, **more}).to_dict())


def write(file: Path, *rows: dict[str, Any]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def read(file: Path, count: int, tells_cut: bool = True, **settings: Any) -> list[Any]:
    from tinker_cookbook.eval.benchmarks import BenchmarkConfig

    answers = {f"id{n}": str(n) for n in range(count)}
    loaded = loading.Loaded(loading.Benchmark(None), answers, tells_cut)
    return trajectories.read_items(file, loaded, BenchmarkConfig(**{"max_tokens": 6, **settings}))


def test_items_are_in_the_benchmark_s_order_and_score_as_the_cookbook_s(tmp_path: Path) -> None:
    from tinker_cookbook.eval.benchmarks import REGISTRY, gsm8k  # noqa: F401

    rewards = [1.0, 0.0, 1.0, 0.0, 1.0]
    order = (3, 0, 4, 2, 1)  # in which the replies came
    lines = [stored(n, rewards[n], logs={"extracted": f"{n}.0"}) for n in order]
    file = write(tmp_path / "t.jsonl", *lines, stored(9))
    items = read(file, 5)
    assert [item.id for item in items] == [f"id{n}" for n in range(5)]
    theirs = REGISTRY["gsm8k"].aggregate(rewards, [{} for _ in rewards]).score
    assert sum(item.correct for item in items) / len(items) == theirs == 0.6
    first = items[2]
    assert (first.question, first.completion) == ("Q2", "A2")
    assert (first.ground_truth, first.extracted) == ("2", "2.0")
    assert not first.truncated and not first.unparsed and first.error is None


@pytest.mark.parametrize(
    ("line", "tells_cut", "window", "cut"),
    [
        (stored(0, metrics={"max_tokens_reached": 1.0}), True, None, True),
        (stored(0, metrics={"context_overflow": 1.0}), True, None, True),
        # A reply may end by itself at the very last token; these benchmarks would say if not.
        (stored(0, tokens=6, metrics={"correct": 1.0}), True, None, False),
        (stored(0, tokens=6, metrics={"correct": 1.0}), False, None, True),
        (stored(0, tokens=5, metrics={"correct": 1.0}), False, None, False),
        (stored(0, tokens=5), False, 15, True),
        (stored(0, tokens=5), False, 16, False),
    ],
)
def test_what_was_cut(tmp_path: Path, line: Any, tells_cut: bool, window: Any, cut: bool) -> None:
    file = write(tmp_path / "t.jsonl", line)
    assert read(file, 1, tells_cut, context_window=window)[0].truncated is cut


@pytest.mark.parametrize(
    ("stop_reason", "truncated", "unparsed"), [("length", True, False), ("stop", False, True)]
)
def test_marks_are_those_of_the_cookbook_s_environment(
    tmp_path: Path, stop_reason: Any, truncated: bool, unparsed: bool
) -> None:
    """A reply that was cut, and one without the end that the renderer waits for."""
    from tinker_cookbook.eval.benchmarks.gsm8k import GSM8KMessageEnv
    from tinker_cookbook.renderers.base import ParseTermination
    from tinker_cookbook.rl.message_env import EnvFromMessageEnv

    class Renderer:
        def get_stop_sequences(self) -> list[str]:
            return []

        def parse_response(self, tokens: list[int]) -> Any:
            return {"role": "assistant", "content": "4"}, ParseTermination.MALFORMED

    env = EnvFromMessageEnv(Renderer(), GSM8KMessageEnv("2+2?", "4"), failed_parse_reward=0.0)  # type: ignore[arg-type]
    step = asyncio.run(env.step([1], extra={"stop_reason": stop_reason}))
    file = write(tmp_path / "t.jsonl", stored(0, metrics=dict(step.metrics)))
    item = read(file, 1)[0]
    assert (item.truncated, item.unparsed) == (truncated, unparsed)


def test_what_has_no_outcome_is_dropped_and_only_that(tmp_path: Path) -> None:
    judged = {"judge_output": "well ...", "score": -1}
    lines = [
        stored(0, 1.0),
        stored(1, error="timeout (300s)", turns=[]),
        stored(2, logs=judged),
        stored(3, logs={**judged, "score": 2}),
    ]
    file = write(tmp_path / "t.jsonl", *lines)
    assert [item.error for item in read(file, 4)] == [
        None,
        "timeout (300s)",
        trajectories.NO_VERDICT,
        None,
    ]
    with file.open("a") as torn:
        torn.write('{"idx": 4, "example_id"')
    trajectories.forget_failures(file)
    assert [row["idx"] for row in jsonl.read(file)] == [0, 3]
    assert file.read_bytes().endswith(b"\n") and trajectories.count(file) == 2
    trajectories.forget_failures(tmp_path / "none.jsonl")
    assert trajectories.count(tmp_path / "none.jsonl") == 0
