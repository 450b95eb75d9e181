"""`make drift` sees what it must: a surface of the installed packages, and a changed one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from repository import ROOT

FOLDER = ROOT / "tests" / "drift"


def surface_of(folder: Path, **environment: str) -> dict[str, str]:
    """The surface as a process of its own sees it."""
    done = subprocess.run(
        [sys.executable, str(FOLDER / "surface.py")],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def surface(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return surface_of(tmp_path_factory.mktemp("surface"))


def compare(before: object, after: object, folder: Path) -> subprocess.CompletedProcess[str]:
    files = []
    for name, value in (("before", before), ("after", after)):
        files.append(folder / f"{name}.json")
        files[-1].write_text(json.dumps(value), encoding="utf-8")
    return subprocess.run(
        [sys.executable, str(FOLDER / "compare.py"), *map(str, files)],
        capture_output=True,
        text=True,
    )


def test_everything_that_we_name_is_installed(surface: dict[str, str]) -> None:
    absent = {k: v for k, v in surface.items() if v == "missing" or v.startswith("not importable")}
    assert absent == {}


def test_the_surface_holds_what_can_drift(surface: dict[str, str]) -> None:
    import tinker
    from tinker_cookbook.hyperparam_utils import get_lr

    assert "deprecated" in surface["tinker.TrainingClient.forward_backward_async"]
    assert "deprecated" not in surface["tinker.TrainingClient.forward_backward"]
    assert surface["tinker.AdamParams.beta1"].endswith(f"= {tinker.AdamParams().beta1}")
    assert surface["get_lr of Qwen/Qwen3-8B"] == f"{get_lr('Qwen/Qwen3-8B'):.3e}"
    assert "qwen3" in surface["model Qwen/Qwen3-8B"]
    assert "tinker_cookbook.supervised.train.Config.recipe_name" in surface
    assert (
        "--format/-f" in surface["command tinker"] and "command tinker checkpoint list" in surface
    )


def test_the_same_packages_do_not_differ(surface: dict[str, str], tmp_path: Path) -> None:
    done = compare(surface, surface_of(tmp_path), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "gone: 0" in done.stdout and "changed: 0" in done.stdout and "new: 0" in done.stdout


def test_a_changed_package_is_told(surface: dict[str, str], tmp_path: Path) -> None:
    """A tinker with another default, a method less, and one more: a real module, imported."""
    (tmp_path / "sitecustomize.py").write_text(
        "import tinker\n"
        "tinker.AdamParams.model_fields['beta1'].default = 0.5\n"
        "del tinker.TrainingClient.forward_backward\n"
        "tinker.TrainingClient.forward_sideways = lambda self, data: None\n",
        encoding="utf-8",
    )
    done = compare(surface, surface_of(tmp_path, PYTHONPATH=str(tmp_path)), tmp_path)
    assert done.returncode == 1
    gone, changed = done.stdout.index("gone: "), done.stdout.index("changed: ")
    new = done.stdout.index("new: ")
    assert "  tinker.TrainingClient.forward_backward\n" in done.stdout[gone:changed]
    assert "  tinker.AdamParams.beta1\n" in done.stdout[changed:new]
    assert "= 0.9  ->  " in done.stdout[changed:new] and "= 0.5" in done.stdout[changed:new]
    assert "  tinker.TrainingClient.forward_sideways\n" in done.stdout[new:]


def test_a_class_that_is_gone_is_one_line(tmp_path: Path) -> None:
    before = {"tinker.A": "class", "tinker.A.x": "1", "tinker.A.x.y": "1", "version of tinker": "1"}
    done = compare(before, {"version of tinker": "2"}, tmp_path)
    assert done.stdout.splitlines() == [
        "tinker 1 -> 2",
        "gone: 1",
        "  tinker.A",
        *done.stdout.splitlines()[3:],
    ]


def test_not_a_surface(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "compare.py"), "no.json", "no.json"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "no.json" in done.stderr and "Traceback" not in done.stderr
