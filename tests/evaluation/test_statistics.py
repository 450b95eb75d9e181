"""Means, the bootstrap's coverage and determinism, the sentence that goes with it."""

import math

import numpy as np
import pytest

from tinkerlab.evaluation import statistics


def test_the_token_weighted_mean_is_the_mean_over_tokens():
    # Item A: 1 token of 3 nats; item B: 3 tokens of 1 nat each.
    assert statistics.weighted_mean([3.0, 1.0], [1, 3]) == pytest.approx((3 + 1 + 1 + 1) / 4)
    assert statistics.weighted_mean([3.0, 1.0]) == 2.0


def test_a_mean_over_nothing_is_refused():
    with pytest.raises(ValueError, match="no items"):
        statistics.weighted_mean([])
    with pytest.raises(ValueError, match="against"):
        statistics.paired_difference([1.0, 2.0], [1.0])


def test_the_interval_is_about_trained_minus_base_and_pairs_the_items():
    random = np.random.default_rng(1)
    base = random.normal(5, 3, size=200)
    # Items differ by far more than the models do; only pairing can see the 0.1.
    trained = base - 0.1 + random.normal(0, 0.05, size=200)
    found = statistics.paired_difference(base.tolist(), trained.tolist())
    assert found.mean == pytest.approx(float(np.mean(trained - base)))
    assert found.low < found.mean < found.high < 0
    assert not found.includes_zero
    assert found.high - found.low < 0.03


def test_the_interval_agrees_with_the_normal_one_on_many_items():
    random = np.random.default_rng(2)
    difference = random.normal(-0.02, 1.0, size=1500)
    found = statistics.paired_difference([0.0] * 1500, difference.tolist())
    error = 1.959964 * difference.std(ddof=1) / math.sqrt(1500)
    assert found.low == pytest.approx(difference.mean() - error, abs=0.006)
    assert found.high == pytest.approx(difference.mean() + error, abs=0.006)


def test_the_token_weighted_interval_resamples_items_not_tokens():
    # One item holds nearly all tokens: a bootstrap over tokens would be sure of its value,
    # a bootstrap over items is not, since that item may not be drawn.
    base, trained = [0.0] * 10, [-1.0] + [1.0] * 9
    found = statistics.paired_difference(base, trained, [1000] + [1] * 9)
    assert found.mean == pytest.approx((-1000 + 9) / 1009)
    assert found.includes_zero


def test_about_95_of_100_intervals_hold_the_truth():
    random = np.random.default_rng(3)
    covered = 0
    for _ in range(300):
        difference = random.normal(0.3, 1.0, size=40)
        found = statistics.paired_difference([0.0] * 40, difference.tolist(), resamples=800)
        covered += found.low <= 0.3 <= found.high
    assert 0.90 <= covered / 300 <= 0.98


def test_the_same_seed_gives_the_same_interval_and_another_seed_nearly():
    base, trained = [1.0, 2.0, 3.0, 4.0], [0.5, 2.5, 2.0, 3.9]
    first = statistics.paired_difference(base, trained, seed=7)
    assert first == statistics.paired_difference(base, trained, seed=7)
    other = statistics.paired_difference(base, trained, seed=8)
    assert other.mean == first.mean
    assert (other.low, other.high) != (first.low, first.high) or other.seed == 8


@pytest.mark.parametrize(
    ("trained", "lower_is_better", "phrase"),
    [
        ([0.5] * 30, True, "better; the interval excludes zero"),
        ([0.5] * 30, False, "WORSE; the interval excludes zero"),
        ([1.5] * 30, True, "WORSE"),
        ([1.0] * 30, True, "includes zero"),
        ([0.5] * 5, True, "too narrow"),
    ],
)
def test_the_sentence_says_it_plainly(trained, lower_is_better, phrase):
    found = statistics.paired_difference([1.0] * len(trained), trained)
    assert phrase in statistics.describe(found, lower_is_better=lower_is_better)
