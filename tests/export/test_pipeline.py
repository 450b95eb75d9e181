"""The whole export against a stand-in for the service that applies the factors unmerged."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tinkerlab.errors import CheckFailed, InputError
from tinkerlab.export import pipeline
from tinkerlab.export.checkpoint import read_checkpoint

SAMPLER = "tinker://run:train:0/sampler_weights/final"


def request(trained, output: Path, **options) -> pipeline.Request:
    return pipeline.Request(
        checkpoint=str(trained.adapter_dir),
        base_name=trained.base_name,
        base_dir=trained.base_dir,
        output=output,
        sampler=SAMPLER,
        max_texts=3,
        max_tokens=48,
        **options,
    )


def run(wanted: pipeline.Request, service) -> pipeline.Result:
    return pipeline.run(wanted, service, lambda line: None)


def stamps(folder: Path) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in folder.rglob("*.safetensors")}


@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe"])
def test_a_good_export(architecture, make_trained, tmp_path) -> None:
    trained = make_trained(architecture)
    result = run(request(trained, tmp_path / "out"), trained)
    assert result.good, result.problems
    assert result.weights and result.weights.good
    behaviour = result.behaviour
    assert behaviour and behaviour.merged and behaviour.adapter
    assert behaviour.effect.mean > 0.1  # the adapter does something, so that the next two mean it
    assert behaviour.merged.distance.largest < 1e-4
    assert behaviour.adapter.distance.largest < 1e-4
    assert not result.notes
    record = json.loads((tmp_path / "out" / "export.json").read_text())
    assert record["result"]["good"] is True
    assert record["result"]["behaviour"]["merged"]["good"] is True
    config = json.loads((tmp_path / "out/adapter/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == trained.base_name
    assert not list((tmp_path / "out").glob(".partial-*"))


def test_a_tied_base_gets_an_output_matrix(make_trained, tmp_path) -> None:
    trained = make_trained("llama")
    run(request(trained, tmp_path / "out", check="weights"), None)
    merged, base = read_checkpoint(tmp_path / "out/merged"), read_checkpoint(trained.base_dir)
    assert base.tied
    assert not merged.tied
    assert merged.shapes["lm_head.weight"] == base.shapes["model.embed_tokens.weight"]
    config = json.loads((tmp_path / "out/adapter/adapter_config.json").read_text())
    assert "lm_head" in config["target_modules"]
    assert "embed_tokens" not in config["target_modules"]


def test_peft_leaves_out_gpt_oss_experts_and_is_caught(make_trained, tmp_path) -> None:
    trained = make_trained("gpt_oss")
    result = run(request(trained, tmp_path / "out"), trained)
    assert result.behaviour and result.behaviour.merged and result.behaviour.merged.good
    assert [p for p in result.problems if "doesn't apply all of it" in p]
    assert len(result.problems) == 1
    merged_only = run(request(trained, tmp_path / "merged", what="merged"), trained)
    assert merged_only.good, merged_only.problems


def test_deepseek_has_a_merged_model_but_no_adapter(make_trained, tmp_path) -> None:
    trained = make_trained("deepseek_v3")
    result = run(request(trained, tmp_path / "out", check="weights"), None)
    assert result.weights and result.weights.good
    assert "adapter" not in result.folders
    assert len(result.problems) == 1
    with pytest.raises(CheckFailed, match="DeepSeek"):
        run(request(trained, tmp_path / "two", what="adapter", check="weights"), None)


def test_scrambled_experts_fail_both_ways(make_trained, edit, tmp_path) -> None:
    trained = make_trained("gpt_oss")
    wanted = request(trained, tmp_path / "out", what="merged")
    run(replace(wanted, check="weights"), None)
    name = "model.layers.1.mlp.experts.gate_up_proj"
    base = read_checkpoint(trained.base_dir).tensor(name)
    edit(tmp_path / "out/merged", name, lambda t: base + (t - base)[[1, 2, 3, 4, 0]])
    result = run(wanted, trained)
    assert result.weights and result.weights.layers == [1]
    assert result.behaviour and result.behaviour.merged and not result.behaviour.merged.good
    assert any("layers 1" in p and name in p for p in result.problems)
    assert any("logprobs differ" in p and "layers 1 differ" in p for p in result.problems)


def test_the_service_samples_something_else(make_trained, tmp_path) -> None:
    """Right weights are not enough: the checkpoint named may not be the one that is served."""
    trained = make_trained("qwen3")

    class Untrained:
        base_logprobs = staticmethod(trained.base_logprobs)
        trained_logprobs = staticmethod(trained.base_logprobs)

    result = run(request(trained, tmp_path / "out", what="merged"), Untrained())
    assert result.weights and result.weights.good
    assert not result.good
    assert "service samples other weights" in result.problems[0]
    assert any("proves little" in note for note in result.notes)


def test_a_noisy_service_widens_the_tolerance(make_trained, tmp_path) -> None:
    trained = make_trained("qwen3")

    class Noisy:
        def __init__(self) -> None:
            self.random = np.random.default_rng(0)

        def _blur(self, rows):
            return [row + self.random.uniform(-0.01, 0.01, len(row)) for row in rows]

        def base_logprobs(self, model, sequences):
            return self._blur(trained.base_logprobs(model, sequences))

        def trained_logprobs(self, checkpoint, sequences):
            return self._blur(trained.trained_logprobs(checkpoint, sequences))

    result = run(request(trained, tmp_path / "out", what="merged"), Noisy())
    assert result.good, result.problems
    assert result.behaviour and result.behaviour.merged
    assert 0.01 < result.behaviour.merged.tolerance.largest < 0.03
    assert result.behaviour.merged.distance.largest > 1e-3


def test_it_goes_on_where_it_stopped(make_trained, tmp_path) -> None:
    trained = make_trained("qwen3")
    wanted = request(trained, tmp_path / "out", check="weights")
    run(wanted, None)
    shutil.rmtree(tmp_path / "out/merged")  # as if it was killed before the last step
    (tmp_path / "out/.partial-xyz/merged").mkdir(parents=True)
    before = stamps(tmp_path / "out")
    result = run(wanted, None)
    after = stamps(tmp_path / "out")
    assert {path: after[path] for path in before} == before  # nothing was built twice
    assert set(after) - set(before) == {str(tmp_path / "out/merged/model.safetensors")}
    assert result.weights and result.weights.good
    assert not list((tmp_path / "out").glob(".partial-*"))


def test_overwrite_builds_anew_and_touches_nothing_else(make_trained, tmp_path) -> None:
    trained = make_trained("qwen3")
    wanted = request(trained, tmp_path / "out", what="merged", check="weights")
    run(wanted, None)
    (tmp_path / "out/notes.txt").write_text("mine")
    before = stamps(tmp_path / "out")
    run(replace(wanted, overwrite=True), None)
    after = stamps(tmp_path / "out")
    assert after.keys() == before.keys()
    assert all(after[path] != before[path] for path in before)
    assert (tmp_path / "out/notes.txt").read_text() == "mine"


def test_another_export_is_not_mixed_in(make_trained, tmp_path) -> None:
    first, second = make_trained("qwen3"), make_trained("llama")
    run(request(first, tmp_path / "out", what="merged", check="weights"), None)
    other = request(second, tmp_path / "out", what="merged", check="weights")
    with pytest.raises(InputError, match="--overwrite"):
        run(other, None)
    result = run(replace(other, overwrite=True), None)
    assert result.good, result.problems


@pytest.mark.parametrize("overwrite", [False, True])
def test_somebody_elses_folder_is_left_alone(make_trained, tmp_path, overwrite) -> None:
    (tmp_path / "merged").mkdir()
    (tmp_path / "merged/thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="not an export"):
        run(request(make_trained("qwen3"), tmp_path, overwrite=overwrite), None)
    assert (tmp_path / "merged/thesis.tex").read_text() == "years of work"


def test_a_file_in_the_way(make_trained, tmp_path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(InputError, match="a file is in the way"):
        run(request(make_trained("qwen3"), tmp_path / "out"), None)


def test_too_large_for_this_machine(make_trained, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(pipeline.verify, "memory_available", lambda: 1000)
    wanted = request(make_trained("qwen3"), tmp_path / "out")
    with pytest.raises(InputError, match="--check weights"):
        run(wanted, None)
    assert not (tmp_path / "out").exists()
    result = run(replace(wanted, check="weights"), None)
    assert result.good
    assert any("not compared" in note for note in result.notes)


@pytest.mark.parametrize(
    ("checkpoint", "words"),
    [
        ("tinker://run:train:0/sampler_weights/final", "tinker://run:train:0/weights/final"),
        ("tinker://run", "not a checkpoint path"),
        ("/no/such/folder", "not a checkpoint path"),
    ],
)
def test_what_cannot_be_downloaded(checkpoint, words, make_trained, tmp_path) -> None:
    wanted = replace(request(make_trained("qwen3"), tmp_path / "out"), checkpoint=checkpoint)
    with pytest.raises(InputError, match=words) as caught:
        run(wanted, None)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
