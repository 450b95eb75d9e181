"""What the installed package has, what each benchmark needs, and what its score hides."""

from __future__ import annotations

import importlib
import importlib.util
import types
from typing import Any

import pytest

from tinkerlab.errors import InputError
from tinkerlab.evaluation.benchmarks import catalogue, caveats, packages


def module(name: str) -> types.ModuleType:
    return importlib.import_module(f"tinker_cookbook.eval.benchmarks.{name}")


def test_the_catalogue_is_the_package_s() -> None:
    from tinker_cookbook.eval.benchmarks import REGISTRY

    found = {entry.name: entry for entry in catalogue.entries()}
    assert set(found) == set(REGISTRY) and len(found) >= 20
    assert not found["gsm8k"].experimental and found["gsm8k"].needs == ()
    assert found["swe_bench"].experimental and not found["swe_bench"].runnable
    assert found["arena_hard"].needs == ("judge_model",)
    assert {name for name, entry in found.items() if "a sandbox (not here)" in entry.needs} == {
        name for name, builder in REGISTRY.items() if builder.requires_sandbox
    }
    assert {name for name, entry in found.items() if not entry.system_prompt} >= {"ifbench", "bfcl"}


@pytest.mark.parametrize(
    ("name", "items", "dataset"),
    [
        ("gsm8k", 1319, "openai/gsm8k"),
        ("gpqa", 198, "Idavidrein/gpqa"),
        ("math500", 500, "HuggingFaceH4/MATH-500"),
        # Its own description counts the test split; it loads the other one.
        ("ceval", 1346, "ceval/ceval-exam"),
        ("aime_2026", 30, "MathArena/aime_2026"),
        ("hmmt_nov_2025", 30, "MathArena/hmmt_nov_2025"),
        ("supergpqa", 26000, "m-a-p/SuperGPQA"),
        ("tau2_bench", None, ""),
    ],
)
def test_sizes_and_sources(name: str, items: int | None, dataset: str) -> None:
    entry = catalogue.entry(name)
    assert (entry.items, entry.dataset) == (items, dataset)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("gsm8", "no benchmark 'gsm8'; did you mean gsm8k"),
        ("mbpp", "eval_offline.py --grader code_tests"),
        ("livecodebench", "eval_offline.py --grader code_tests"),
        ("tau2_bench", "takes several turns"),
        ("ifbench", "without the package that provides instructions_registry"),
        ("arena_hard", "set judge_model"),
    ],
)
def test_what_can_t_be_run_is_refused(name: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        catalogue.require(["gsm8k", name], judge=False)
    assert list(catalogue.require(["gsm8k", "arena_hard"], judge=True)) == ["gsm8k", "arena_hard"]


def test_packages_by_how_their_absence_is_met(tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "graded_here.py").write_text(
        "import json\n"
        "from typing import TYPE_CHECKING\n"
        "import torch\n"
        "if TYPE_CHECKING:\n    import only_for_types\n"
        "try:\n    import asked_at_once\nexcept ImportError:\n    asked_at_once = None\n"
        "def grade():\n    import needed.deeper\n"
        "def mild():\n    try:\n        from optional import x\n    except Exception:\n"
        "        return True\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    found = packages.missing(types.ModuleType("graded_here"))
    assert found == {"asked_at_once": True, "needed": True, "optional": False}


def test_packages_of_the_recipes_that_grade(monkeypatch: Any) -> None:
    """math500 grades with a recipe's module, which reads LaTeX with pylatexenc."""
    assert packages.missing(module("math500")) == {}
    real = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> Any:
        return None if name == "pylatexenc" else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    assert packages.missing(module("math500")) == {"pylatexenc": True}
    assert packages.missing(module("gsm8k")) == {}


def caveats_of(name: str, file: str) -> str:
    return " ".join(caveats.of_benchmark(name, module(file), packages.missing(module(file))))


def test_ifeval_is_as_mild_as_told() -> None:
    verify = module("_ifeval_verify").verify_instruction
    words = "length_constraints:number_words"
    assert verify(words, "one two three", {"relation": "less than", "num_words": 2})
    assert not verify(words, "one two three", {"relation": "at least", "num_words": 9})
    assert verify("combination:repeat_prompt", "no", {"prompt_to_repeat": "Say hello"})
    assert verify("combination:two_responses", "one answer\n---", {})
    told = caveats_of("ifeval", "ifeval")
    assert "'less than' constraints and repeat_prompt always count as met" in told
    if importlib.util.find_spec("langdetect") is None:
        assert verify("language:response_language", "This is English.", {"language": "fr"})
        assert "pip install langdetect" in told


def test_hmmt_is_as_narrow_as_told() -> None:
    equal = module("_hmmt")._check_math_equal
    assert equal("4", "4.0") and equal("\\frac{1}{2}", "\\frac{1}{2}")
    told = caveats_of("hmmt_feb_2025", "_hmmt")
    assert ("counts as wrong here" in told) == (not equal("\\frac{1}{2}", "0.5"))


def test_gsm8k_takes_the_last_number() -> None:
    assert module("gsm8k").check_gsm8k("It was 1999, with 12 of 4", "4")
    assert "its last number counts" in caveats_of("gsm8k", "gsm8k")
    assert caveats_of("math500", "math500") == ""
