"""The rule's behaviour under noise, and what each of its steps decides."""

import numpy as np
import pytest

from tinkerlab.evaluation.selection.checkpoints import Checkpoint
from tinkerlab.evaluation.selection.decide import Layers, decide
from tinkerlab.evaluation.selection.layers import Evaluation, Kind, Measured


def layer(scores_KN, kind: Kind = "application", base=None, higher=True):
    scores = {f"{k}": list(map(float, row)) for k, row in enumerate(scores_KN)}
    return Measured(kind, [Evaluation(kind, "e", {}, higher, scores, base)])


def checkpoints(count):
    return [Checkpoint(f"{k}", k + 1) for k in range(count)]


def equally_good(generator, count, items, copied):
    """[K, N] right or wrong for checkpoints of equal true quality on items of any difficulty.

    ``copied`` of a checkpoint's answers are those of the one before it, as in a run that has
    settled; the others are drawn anew.
    """
    chance_N = generator.beta(1, 1, items)
    rows = [generator.random(items) < chance_N]
    for _ in range(count - 1):
        fresh_N, same_N = generator.random(items) < chance_N, generator.random(items) < copied
        rows.append(np.where(same_N, rows[-1], fresh_N))
    return np.array(rows)


def share_of_earliest(trials, count, items, copied):
    generator = np.random.default_rng(0)
    chosen = [
        decide(checkpoints(count), Layers(application=layer(rows))).chosen
        for rows in (equally_good(generator, count, items, copied) for _ in range(trials))
    ]
    return sum(c is not None and c.name == "0" for c in chosen) / trials


def test_of_equally_good_checkpoints_the_earliest_is_taken():
    """The intervals promise it in 97.5 % of all selections; the slow test below counts more."""
    assert share_of_earliest(60, 6, 60, 0.5) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 8, 20])
@pytest.mark.parametrize("copied", [0.0, 0.9])
def test_in_nearly_all_of_many_selections(count, copied):
    share = share_of_earliest(200, count, 100, copied)
    print(f"{count} checkpoints, 100 items, {copied:.0%} copied: earliest in {share:.1%}")
    assert share >= 0.92


def test_a_true_difference_is_found():
    """0.5 against 0.8 of 200 items: the earliest of the good ones, hardly ever a bad one."""
    generator = np.random.default_rng(0)
    chosen = []
    for _ in range(40):
        rows = [generator.random(200) < chance for chance in (0.5, 0.5, 0.8, 0.8, 0.8)]
        found = decide(checkpoints(5), Layers(application=layer(rows))).chosen
        assert found is not None
        chosen.append(found.name)
    assert chosen.count("2") >= 36
    assert not {"0", "1"} & set(chosen)


def test_twenty_comparisons_need_more_than_one():
    """One interval of twenty is wider than one alone: Bonferroni."""
    rows = [[0.0] * 90 + [1.0] * 10, [0.0] * 80 + [1.0] * 20]
    one = layer(rows).gap("0", "1")
    many = layer(rows).gap("0", "1", comparisons=20)
    assert many.low < one.low and one.high < many.high
    # Normal approximation at 1 - 0.05/20: 3.02 standard errors of 0.03.
    assert many.low == pytest.approx(-0.1 - 3.02 * 0.03, abs=0.015)


def test_of_equal_scores_the_first():
    decision = decide(checkpoints(3), Layers(application=layer([[1.0, 0.0]] * 3)))
    assert decision.chosen and decision.chosen.name == "0"
    assert decision.tied == ["0", "1", "2"]


def test_a_measured_loss_has_an_interval_and_lower_wins():
    generator = np.random.default_rng(1)
    difficulty_N = generator.gamma(4, 0.5, 60)
    rows = [difficulty_N + shift + generator.normal(0, 0.05, 60) for shift in (0.5, 0.001, 0, 0.4)]
    base = (difficulty_N + 1).tolist()
    decision = decide(checkpoints(4), Layers(nll=layer(rows, "loss", base, higher=False)))
    # Items differ by a nat and more; paired, half a nat is plain to see and 0.001 is not.
    assert decision.chosen and decision.chosen.name == "1"
    assert decision.tied == ["1", "2"]
    gap = decision.of("1").to_base
    assert gap and gap.mean == pytest.approx(1.0, abs=0.05) and gap.better


def test_a_layer_is_needed():
    with pytest.raises(ValueError, match="no layer"):
        decide(checkpoints(2), Layers())
