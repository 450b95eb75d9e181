"""Distances, tolerances, and the noise that storage rounding makes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkerlab.export.behaviour import (
    FLOAT32_MAX,
    FLOAT32_MEAN,
    Distance,
    Tolerance,
    distance,
    load_model,
    local_logprobs,
    shake,
    tolerance,
)


def test_distance_finds_the_worst_token() -> None:
    first = [np.array([-1.0, -2.0]), np.array([-3.0, -4.0, -5.0])]
    second = [np.array([-1.0, -2.0]), np.array([-3.0, -4.5, -5.1])]
    found = distance(first, second)
    assert found.largest == pytest.approx(0.5)
    assert found.mean == pytest.approx(0.6 / 5)
    assert (found.tokens, found.sequence, found.position) == (5, 1, 2)


def test_other_sequences_are_not_compared() -> None:
    with pytest.raises(ValueError, match="other sequences"):
        distance([np.zeros(2)], [np.zeros(3)])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_never_admitted(bad: float) -> None:
    found = distance([np.array([-1.0, bad, -1.0])], [np.array([-1.0, -1.0, -1.0])])
    assert (found.sequence, found.position) == (0, 2)
    assert not Tolerance(1e9, 1e9).admits(found)


def test_tolerance_is_twice_the_noise_but_not_nothing() -> None:
    assert tolerance(Distance(0.0, 0.0, 9)) == Tolerance(FLOAT32_MAX, FLOAT32_MEAN)
    found = tolerance(Distance(0.1, 0.01, 9), Distance(0.2, 0.02, 9))
    assert found.largest == pytest.approx(0.6)
    assert found.mean == pytest.approx(0.06)


def test_the_mean_must_fit_as_well() -> None:
    allowed = Tolerance(0.5, 0.01)
    assert allowed.admits(Distance(0.5, 0.01, 9))
    assert not allowed.admits(Distance(0.4, 0.02, 9))
    assert not allowed.admits(Distance(0.6, 0.001, 9))


@given(st.lists(st.lists(st.floats(-50, 0), min_size=1, max_size=9), min_size=1, max_size=5))
def test_nothing_lies_between_a_thing_and_itself(rows: list[list[float]]) -> None:
    arrays = [np.array(row) for row in rows]
    found = distance(arrays, arrays)
    assert found.largest == found.mean == 0.0
    assert found.tokens == sum(map(len, rows))


def test_storage_noise_has_the_size_of_real_rounding(make_trained) -> None:
    """The floor for a bfloat16 merge must be near what rounding to bfloat16 really does."""
    import torch

    folder = str(make_trained("qwen3").base_dir)
    sequences = [list(b"The river had risen during the night."), list(b"def f(x): return x + 1")]
    exact = local_logprobs(load_model(folder), sequences)
    shaken = load_model(folder)
    shake(shaken, "BF16")
    rounded = load_model(folder)
    with torch.no_grad():
        for weight in rounded.parameters():
            weight.copy_(weight.bfloat16().float())
    noise = distance(exact, local_logprobs(shaken, sequences)).mean
    real = distance(exact, local_logprobs(rounded, sequences)).mean
    assert real / 2 < noise < 4 * real
    assert noise > 100 * FLOAT32_MEAN


def test_local_logprobs_are_those_of_the_model(make_trained) -> None:
    import torch

    model = load_model(str(make_trained("llama").base_dir))
    tokens = list(b"abcabc")
    found = local_logprobs(model, [tokens])[0]
    with torch.inference_mode():
        for position in range(1, len(tokens)):
            logits = model(torch.tensor([tokens[:position]])).logits[0, -1]
            expected = float(logits.log_softmax(-1)[tokens[position]])
            assert found[position - 1] == pytest.approx(expected, abs=1e-5)
