"""What ``references/ops.md`` says that runs leave, held against runs on the rehearsal.

Keys and files are compared both ways: what a run leaves is named, and what is named is left.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from markdown_pages import read_page
from page_tables import PAGES, spans, table

# A method's name in the page -> of its run in ``short_runs``.
METHODS = {"SFT": "sft", "RL": "rl", "DPO": "dpo", "distillation": "distill"}
SLOW = [pytest.mark.slow, pytest.mark.timeout(900)]


def keys_of(folder: Path) -> set[str]:
    rows = (folder / "metrics.jsonl").read_text().splitlines()
    return {key for row in rows for key in json.loads(row)}


@pytest.fixture(scope="module")
def ours(rehearsal: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A short run of each trainer: method -> run folder."""
    from short_runs import short_runs

    return short_runs(rehearsal, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def theirs(rehearsal: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A short run of each of tinker-cookbook's loops."""
    from cookbook_runs import cookbook_runs

    return cookbook_runs(rehearsal, tmp_path_factory.mktemp("cookbook"))


def test_checkpoint_records_have_these_keys() -> None:
    from tinkerlab.runs.checkpoints import CheckpointRecord

    named = {name for row in table("ops.md", "key", "meaning") for name in spans(row[0])}
    record = CheckpointRecord("a", 1, 0, 0, "s", "p", True)
    assert named == set(record.to_row())


class TestRuns:
    pytestmark = SLOW

    @pytest.mark.parametrize("name", METHODS)
    def test_metric_keys_are_all_named(self, name: str, ours: dict[str, Path]) -> None:
        rows = [
            row
            for row in table("ops.md", "key", "in")
            if row[1] == "all" or name in row[1].split(", ")
        ]
        named = {key for row in rows for key in spans(row[0])}
        logged = keys_of(ours[METHODS[name]])
        # `test/` and a dataset's number go with a key that has a row of its own.
        aside = {key.removeprefix("test/").removesuffix("/dataset_0") for key in logged}
        assert named <= logged, f"not logged: {sorted(named - logged)}"
        unnamed = {key for key in aside if key not in named and f"test/{key}" not in named}
        assert not unnamed
        for row in rows:
            if "each with `test/`" in row[2]:
                assert {f"test/{key}" for key in spans(row[0])} <= logged

    def test_run_folders_hold_these_files(self, ours: dict[str, Path]) -> None:
        named = {spans(row[0])[0]: row[1] for row in table("ops.md", "file")}
        left = {
            method: {path.name for path in folder.iterdir() if path.is_file()}
            for method, folder in ours.items()
        }
        assert {name for names in left.values() for name in names if name[0] != "."} == set(named)
        for name, holds in named.items():
            where = [method for method in METHODS.values() if name in left[method]]
            if holds.startswith("RL"):
                assert where == ["rl"], name
            elif "(SFT, DPO)" in holds:
                assert where == ["sft", "dpo"], name
            else:
                assert len(where) == 4, f"{name}: only {where}"

    @pytest.mark.parametrize("row", table("ops.md", "cookbook loop"), ids=lambda row: row[0])
    def test_metric_keys_of_the_cookbook(self, row: list[str], theirs: dict[str, Path]) -> None:
        logged = keys_of(theirs[row[0].lower()])
        assert set(spans(row[1])) == {key for key in logged if not key.startswith("time/")}

    def test_files_of_the_cookbook(self, theirs: dict[str, Path]) -> None:
        named = {name for row in table("ops.md", "cookbook file") for name in spans(row[0])}
        left = {
            name: {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
            for name, folder in theirs.items()
        }
        first = {name for name in left["rl"] if not name.startswith("iteration_000001")}
        assert first == named
        assert (
            left["sft"]
            == left["dpo"]
            == {name for name in named if not name.startswith(("iteration", "trace_events"))}
        )

    def test_rows_of_the_rollout_summaries(self, theirs: dict[str, Path]) -> None:
        file = theirs["rl"] / "iteration_000000" / "train_rollout_summaries.jsonl"
        summary = json.loads(file.read_text().split("\n")[0])
        (cell,) = [r[1] for r in table("ops.md", "cookbook file") if "summaries" in r[0]]
        assert set(spans(cell)) <= set(summary)

    def test_transcripts_are_where_the_page_says(self, theirs: dict[str, Path]) -> None:
        def conversations(node: Any) -> list[Any]:
            if not isinstance(node, dict):
                return []
            here = [node["data"]] if node.get("data", {}).get("type") == "conversation" else []
            return here + [found for child in node["children"] for found in conversations(child)]

        file = theirs["rl"] / "iteration_000000" / "train_logtree.json"
        found = conversations(json.loads(file.read_text())["root"])
        roles = [message["role"] for each in found for message in each["messages"]]
        assert roles[:2] == ["user", "assistant"]

    def test_the_cookbook_s_last_record_has_no_final(self, theirs: dict[str, Path]) -> None:
        for folder in theirs.values():
            last = json.loads((folder / "checkpoints.jsonl").read_text().splitlines()[-1])
            assert last["name"] == "final" and "final" not in last


def test_prices_and_lives_are_those_of_our_files() -> None:
    import chz
    import yaml
    from repository import ROOT

    from tinkerlab.training.supervised_config import SupervisedConfig

    prices = yaml.safe_load((ROOT / "templates/prices.yaml").read_text(encoding="utf-8"))
    text = read_page(PAGES / "ops.md")
    assert f"{prices['storage_gb_month']:.2f} USD per GB and month" in text
    assert chz.chz_fields(SupervisedConfig)["ttl_seconds"]._default == 7 * 24 * 60 * 60
