"""Sampler against trainer on a rehearsal: equal when healthy, and each way of being unequal."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import compare_sampling_training_logprobs as script
from tinkerlab.diagnosis.logprob_gap.statistics import false_zeros, gap, worst
from tinkerlab.diagnosis.logprob_gap.verdict import Scores, judge
from tinkerlab.errors import InputError


@pytest.fixture
def compare(rehearsal: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run the script against the shared rehearsal; its JSON document."""
    for name in ("TINKER_BASE_URL", "TINKER_API_KEY"):
        monkeypatch.setenv(name, rehearsal.env[name])

    def run(*arguments: str) -> dict[str, Any]:
        capsys.readouterr()
        code = script.main(
            ["--model", rehearsal.model, "--n", "3", "--max-tokens", "8", *arguments, "--json"]
        )
        document = json.loads(capsys.readouterr().out)
        assert code == (0 if document["ok"] else 1)
        return document

    return run


@pytest.fixture
def checkpoints(rehearsal: Any) -> dict[str, str]:
    """Paths of one run: ``early`` sampler weights, then training, then ``late`` of both kinds."""
    import tinker

    trainer = rehearsal.client().create_lora_training_client(rehearsal.model, rank=4).result()
    tokens = list(range(60, 90))
    datum = tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tinker.TensorData(
                data=tokens[1:], dtype="int64", shape=[len(tokens) - 1]
            ),
            "weights": tinker.TensorData(
                data=[1.0] * (len(tokens) - 1), dtype="float32", shape=[len(tokens) - 1]
            ),
        },
    )

    def steps(count: int) -> None:
        pending = []
        for _ in range(count):
            pending.append(trainer.forward_backward([datum], "cross_entropy"))
            pending.append(trainer.optim_step(tinker.AdamParams(learning_rate=5e-3)))
        for future in pending:
            future.result()

    steps(2)
    early = trainer.save_weights_for_sampler("gap-early").result().path
    steps(3)
    late = trainer.save_state("gap-late").result().path
    late_sampler = trainer.save_weights_for_sampler("gap-late").result().path
    return {"early": early, "late": late, "late_sampler": late_sampler}


def causes(document: dict[str, Any]) -> list[str]:
    return [finding["cause"] for finding in document["findings"]]


def test_the_base_model_agrees_with_itself(compare) -> None:
    document = compare()
    assert causes(document) == []
    (gaps,) = document["gaps"].values()
    assert gaps["sampler vs trainer"]["mean"] < 1e-4
    assert document["checked"] == {"models": 1, "tokens": 24} or document["checked"]["tokens"] > 0


def test_a_checkpoint_agrees_with_its_own_sampler(compare, checkpoints) -> None:
    assert causes(compare("--checkpoint", checkpoints["late"])) == []
    assert (
        causes(
            compare("--checkpoint", checkpoints["late"], "--sampler", checkpoints["late_sampler"])
        )
        == []
    )


def test_a_sampler_from_before_the_last_steps_is_stale(compare, checkpoints) -> None:
    document = compare("--checkpoint", checkpoints["late"], "--sampler", checkpoints["early"])
    assert causes(document) == ["sampler-weights-differ"]
    assert any("noise floor" in fact for fact in document["findings"][0]["evidence"])


def test_logprobs_at_another_temperature(compare) -> None:
    """Whatever the service returns, the recomputed logprobs acquit the weights."""
    assert "sampler-weights-differ" not in causes(compare("--temperature", "0.3"))


def scores(**changes: Any) -> Scores:
    values = [-0.5, -1.0, -2.0, -0.1]
    made: dict[str, Any] = {
        "tokens": [65, 66, 67, 68],
        "sampled": values,
        "sampler": values,
        "trainer": values,
        "base_sampler": [-3.0, -3.0, -3.0, -3.0],
        "base_trainer": [-3.0, -3.0, -3.0, -3.0],
    }
    return Scores(**{**made, **changes})


class Letters:
    def decode(self, tokens: list[int]) -> str:
        return "".join(map(chr, tokens))


@pytest.mark.parametrize(
    ("changes", "temperature", "expected"),
    [
        ({}, 1.0, []),
        ({"sampler": [-3.0] * 4, "sampled": [-3.0] * 4}, 1.0, ["adapter-not-applied"]),
        ({"trainer": [-0.6, -1.1, -2.1, -0.2]}, 1.0, ["sampler-weights-differ"]),
        ({"sampled": [-0.1, -0.4, -1.0, -0.05]}, 0.5, ["temperature-in-logprobs"]),
        ({"sampled": [-0.1, -0.4, -1.0, -0.05]}, 1.0, ["sampled-logprobs-differ"]),
    ],
)
def test_each_cause_by_its_numbers(
    changes: dict[str, Any], temperature: float, expected: list[str]
) -> None:
    judged = judge("m", scores(**changes), temperature, Letters())
    assert [finding.cause for finding in judged.findings] == expected


def test_zeros_that_the_trainer_does_not_share() -> None:
    zeros = scores(sampled=[0.0, 0.0, 0.0, 0.0])
    found = [finding.cause for finding in judge("m", zeros, 1.0, Letters()).findings]
    assert found[0] == "logprobs-exactly-zero"
    assert false_zeros([0.0, -1.0], [-1e-6, -1.0]) == 0  # both are certain: no fault


def test_the_noise_floor_of_a_noisy_service_is_allowed_for() -> None:
    noisy = scores(trainer=[-0.53, -1.03, -2.03, -0.13], base_trainer=[-3.02, -3.02, -3.02, -3.02])
    assert judge("m", noisy, 1.0, Letters()).findings == []


def test_the_estimates_by_hand() -> None:
    between = gap([-1.0, -2.0], [-1.5, -1.5])
    assert between.k1 == pytest.approx(0.0)
    assert between.mean == pytest.approx(0.5)
    expected = (math.exp(-0.5) - 1 + 0.5 + math.exp(0.5) - 1 - 0.5) / 2
    assert between.k3 == pytest.approx(expected)
    assert between.v2 == pytest.approx(0.125)
    assert worst([65, 66], [-1.0, -2.0], [-1.0, -5.0], Letters(), 1) == [
        "'B': sampler -2.0000, trainer -5.0000"
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--n", "0"],
        ["--temperature", "-1"],
        ["--temperature", "nan"],
        ["--checkpoint", "weights/final"],
        ["--checkpoint", "tinker://r/sampler_weights/a"],
        ["--model", "tiny:qwen3", "--sampler", "tinker://r/sampler_weights/a"],
    ],
)
def test_arguments_that_make_no_sense(arguments: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        script.main(["--model", "tiny:llama", *arguments])
    assert "\n" not in str(caught.value)


def test_without_a_service_it_says_how_to_rehearse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("TINKER_API_KEY", "tml-dummy")
    with pytest.raises(InputError, match=r"rehearse\.py"):
        script.main(["--model", "tiny:llama"])


def test_a_checkpoint_that_is_not_there(compare) -> None:
    with pytest.raises(InputError):
        compare("--checkpoint", "tinker://nobody/weights/none")


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\x00\x01\x02", b"\xff\xfe\x00"])
def test_prompt_files_that_hold_none(compare, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match="prompts file"):
        compare("--prompts", str(path))
