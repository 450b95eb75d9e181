"""Which setting is called the best, and what is said against it. Figures worked out by hand."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tinkerlab.errors import InputError
from tinkerlab.sweeps import plot, tables
from tinkerlab.sweeps.plan import Member, Plan
from tinkerlab.sweeps.results import Results, as_dict, collect, verdict
from tinkerlab.sweeps.runner import Ended, Outcome
from tinkerlab.sweeps.trainers import TRAINERS

Settings = Mapping[str, str]


def swept(
    tmp_path: Path,
    runs: Sequence[tuple[Settings, list[float]]],
    *,
    key: str = "test/nll",
    status: Mapping[int, Ended] | None = None,
    held_out: list[str] | None = None,
    metric: str | None = None,
) -> Results:
    """A sweep whose run number i logged ``runs[i][1]`` as its evaluations, two steps apart."""
    members, outcomes = [], []
    for place, (settings, values) in enumerate(runs):
        folder = tmp_path / f"run{place}"
        folder.mkdir(parents=True)
        rows: list[dict[str, Any]] = []
        for step, value in enumerate(values):
            row = {"step": 2 * step, "train_mean_nll": 1.0, "time/total": 0.5, key: value}
            rows += [row, {"step": 2 * step + 1, "train_mean_nll": 0.9, "time/total": 0.5}]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        same = held_out[place] if held_out else "same"
        config = {"resolved": {"held_out_sha256": same}}
        (folder / "config.json").write_text(json.dumps(config))
        members.append(Member(f"run{place}", folder, dict(settings), (), {}, {}))
        ended: Ended = (status or {}).get(place, "complete")
        outcomes.append(Outcome(members[-1], ended, 0 if ended == "complete" else 1))
    keys = tuple(dict.fromkeys(key for settings, _ in runs for key in settings))
    plan = Plan(TRAINERS["sl_trainer.py"], None, tmp_path, tuple(members), keys)
    return collect(plan, outcomes, metric)


def rates(*finals: float) -> list[tuple[Settings, list[float]]]:
    return [({"lr": str(n + 1)}, [3.0, final]) for n, final in enumerate(finals)]


def test_the_lowest_loss_wins_with_the_caution_of_one_seed(tmp_path: Path) -> None:
    results = swept(tmp_path, rates(1.5, 1.2, 1.3))
    assert results.metric == "test/nll" and not results.higher
    assert [setting.name for setting in results.settings] == ["lr=2", "lr=3", "lr=1"]
    lines = verdict(results)
    assert lines[0] == "best: lr=2  test/nll 1.2"
    assert lines[1] == "next: lr=3  test/nll 1.3, 0.1 behind"
    assert "add seed=0,1,2 before you trust a difference of 0.1" in lines[2]
    assert "score it once more on items that chose nothing" in lines[-1]


def test_the_highest_score_wins(tmp_path: Path) -> None:
    results = swept(tmp_path, rates(0.2, 0.8), key="test/env/all/correct")
    assert results.higher and results.best and results.best.settings == {"lr": "2"}


def test_seeds_give_mean_and_spread(tmp_path: Path) -> None:
    runs = [({"lr": lr, "seed": s}, [3.0, v]) for lr, s, v in SEEDS]
    results = swept(tmp_path, runs)
    best = results.best
    assert best and best.settings == {"lr": "2"}
    assert best.mean == pytest.approx(1.2) and best.spread == pytest.approx(0.1)
    assert results.settings[1].mean == pytest.approx(1.3)
    lines = verdict(results)
    assert lines[0] == "best: lr=2  test/nll 1.2 ± 0.1 (sd of 3 seeds)"
    # Seed by seed: 1.1 - 1.3, 1.2 - 1.2, 1.3 - 1.4.
    assert lines[2].startswith("seed by seed, the best is ahead of the next in 2 of 3")
    assert "(from -0.2 to +0)" in lines[2] and "not told apart" in lines[2]
    assert not any("add seed=" in line for line in lines)


SEEDS = [
    ("1", "0", 1.3),
    ("1", "1", 1.2),
    ("1", "2", 1.4),
    ("2", "0", 1.1),
    ("2", "1", 1.2),
    ("2", "2", 1.3),
]


def test_a_seed_that_wins_throughout_is_not_doubted(tmp_path: Path) -> None:
    runs = [({"lr": lr, "seed": s}, [v - 0.5 * (lr == "2")]) for lr, s, v in SEEDS]
    line = verdict(swept(tmp_path, runs))[2]
    assert "in 3 of 3" in line and "not told apart" not in line


def test_runs_that_failed_take_no_part(tmp_path: Path) -> None:
    results = swept(tmp_path, rates(1.5, 0.1, 1.3), status={1: "failed"})
    assert [setting.name for setting in results.settings] == ["lr=3", "lr=1"]
    assert [outcome.member.name for outcome in results.failed] == ["run1"]
    assert verdict(swept(tmp_path / "x", rates(1.0), status={0: "failed"})) == [
        "no best setting: no run is complete"
    ]


def test_a_tie_is_told(tmp_path: Path) -> None:
    lines = verdict(swept(tmp_path, rates(1.0, 1.5, 1.0)))
    assert lines[0].startswith("tied: 2 settings reach test/nll 1, the first is lr=1;")
    assert not any("caution" in line or "next:" in line for line in lines)


def test_different_held_out_items_are_told(tmp_path: Path) -> None:
    lines = verdict(swept(tmp_path, rates(1.0, 1.1), held_out=["a", "b"]))
    assert any("different held-out items" in line for line in lines)
    runs = [({"lr": lr, "seed": s}, [v]) for lr, s, v in SEEDS]
    lines = verdict(swept(tmp_path / "x", runs, held_out=["a", "b", "c"] * 2))
    assert any("each seed holds out other items" in line for line in lines)
    assert not any("different held-out items" in line for line in lines)


def test_losses_of_other_tokenizers_are_told(tmp_path: Path) -> None:
    runs: list[tuple[Settings, list[float]]] = [
        ({"base_model": "a"}, [1.0]),
        ({"base_model": "b"}, [1.1]),
    ]
    assert any("tokenizers" in line for line in verdict(swept(tmp_path, runs)))


def test_no_evaluation_no_winner(tmp_path: Path) -> None:
    results = swept(tmp_path, rates(1.0, 1.1), key="other")
    assert results.metric is None and results.best is None
    assert verdict(results) == ["no best setting: no held-out evaluation was logged"]
    tables.write(results)
    assert not (tmp_path / tables.PLOT).exists()


def test_a_metric_of_ones_own(tmp_path: Path) -> None:
    assert swept(tmp_path, rates(1.0, 1.1), key="test/margin", metric="test/margin").higher
    with pytest.raises(InputError, match="metric 'test/nl': no run logged it; logged: test/nll"):
        swept(tmp_path / "x", rates(1.0, 1.1), metric="test/nl")


def test_files(tmp_path: Path) -> None:
    results = swept(tmp_path, [({"lr": "1"}, [3.0, 1.0, 1.5]), ({"lr": "2"}, [3.0])])
    tables.write(results)
    rows = list(csv.DictReader(io.StringIO((tmp_path / tables.CSV).read_text())))
    assert [row["lr"] for row in rows] == ["1", "2"]
    first = rows[0]
    assert (first["final"], first["first"], first["best"]) == ("1.5", "3.0", "1.0")
    assert (first["best_step"], first["steps"], first["seconds"]) == ("2", "6", "3.0")
    document = json.loads((tmp_path / tables.JSON).read_text())
    assert document == json.loads(json.dumps(as_dict(results)))
    assert document["best"] == {"lr": "1"}
    assert (tmp_path / tables.PLOT).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("values", "axis"),
    [(["1e-4", "3e-4", "1e-3"], "lr"), (["1e-4", "3e-4"], None), (["a", "b", "c"], None)],
)
def test_what_is_drawn_over_a_number(tmp_path: Path, values: list[str], axis: str | None) -> None:
    runs: list[tuple[Settings, list[float]]] = [
        ({"lr": value, "mlp": mlp, "seed": seed}, [2.0, 1.0 + n / 10])
        for n, value in enumerate(values)
        for mlp in ("true", "false")
        for seed in ("0", "1")
    ]
    results = swept(tmp_path, runs, status={0: "failed"})
    assert plot.numeric_axis(results) == axis
    assert plot.draw(results).startswith(b"\x89PNG")


def test_a_picture_of_runs_that_all_failed(tmp_path: Path) -> None:
    results = swept(tmp_path, rates(1.0, 1.1), status={0: "failed", 1: "interrupted"})
    assert plot.draw(results).startswith(b"\x89PNG")
