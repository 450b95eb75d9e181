"""The README's main job, on a tiny model: every stage really runs, and a second start resumes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tinkerlab.evaluation.checking import check_results

SCRIPT = Path(__file__).parents[1] / "scripts" / "demo.py"


def demo(*arguments, env=None, cwd=None):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        capture_output=True,
        text=True,
        env=env,
        cwd=cwd,
    )


@pytest.mark.slow
def test_the_whole_chain_runs_and_a_second_start_has_nothing_left_to_do(tmp_path):
    command = ("--base-model", "tiny:llama", "--steps", 12, "--output", "out", "--json")
    first = demo(*command, cwd=tmp_path)
    assert first.returncode == 0, first.stderr[-3000:]
    document = json.loads(first.stdout)
    assert document["failed"] == []
    assert list(document["seconds"]) == [
        "check_data",
        "train",
        "evaluate",
        "check_results",
        "export",
        "report",
    ]
    summary = document["summary"]
    assert summary["trained_nll"] < summary["baseline_nll"]
    assert summary["dataset"]["items"] == 32
    assert "$ python" in first.stderr

    folder = tmp_path / "out"
    assert check_results(folder / "results").ok
    exported = json.loads((folder / "export" / "export.json").read_text())
    assert exported["result"]["good"] is True
    page = (folder / "report.html").read_text()
    assert "results check passed" in page
    assert ">verified<" in page

    second = demo(*command, cwd=tmp_path)
    assert second.returncode == 0, second.stderr[-3000:]
    assert second.stderr.count("done before") == 6
    assert json.loads(second.stdout) == document

    other = demo("--base-model", "tiny:llama", "--steps", 13, "--output", "out", cwd=tmp_path)
    assert other.returncode == 2
    assert "other settings (num_steps)" in other.stderr


def test_hosted_without_a_key_is_refused_before_anything_is_made(tmp_path):
    env = {k: v for k, v in os.environ.items() if not k.startswith("TINKER_")}
    done = demo("--hosted", "--output", tmp_path / "out", env={**env, "HOME": str(tmp_path)})
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "error: --hosted needs a key: set TINKER_API_KEY, or leave --hosted out"
    )
    assert not (tmp_path / "out").exists()


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    done = demo("--output", tmp_path)
    assert done.returncode == 2
    assert "holds something else" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
