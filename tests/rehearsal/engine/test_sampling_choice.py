"""Token choice: the distributions, their borders, and seeds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tinkerlab.rehearsal.engine.token_choice import (
    ChoiceRule,
    Chooser,
    draw_many,
    row_generator,
)

DRAWS = 4000
# Chi-square's 1 - 1e-4 quantile is about m + 3.7 sqrt(2 m) + 9 for m degrees of freedom; the seeds
# are fixed, so that these tests pass or fail for good.


def chi_square_fits(counts: np.ndarray, probabilities: np.ndarray) -> bool:
    expected = probabilities * counts.sum()
    assert counts[probabilities == 0].sum() == 0, "a token of probability 0 was drawn"
    common = expected >= 5  # rare tokens together are one cell
    observed = np.append(counts[common], counts[~common].sum())
    expected = np.append(expected[common], expected[~common].sum())
    keep = expected > 0
    statistic = ((observed - expected)[keep] ** 2 / expected[keep]).sum()
    freedom = keep.sum() - 1
    return bool(statistic < freedom + 3.7 * np.sqrt(2 * freedom) + 9)


def reference(logits: np.ndarray, rule: ChoiceRule) -> np.ndarray:
    """The distribution of a rule, in plain numpy, float64: temperature, top-k, then top-p."""
    scaled = logits.astype(np.float64) / rule.temperature
    p = np.exp(scaled - scaled.max())
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    if rule.top_k > 0:
        p[order[rule.top_k :]] = 0
        p /= p.sum()
    kept, mass = [], 0.0
    for token in order:
        if mass >= rule.top_p:
            break
        kept.append(token)
        mass += p[token]
    out = np.zeros_like(p)
    out[kept] = p[kept]
    return out / out.sum()


RULES = [
    ChoiceRule(),
    ChoiceRule(temperature=0.6),
    ChoiceRule(temperature=2.5),
    ChoiceRule(top_p=0.7),
    ChoiceRule(top_k=5),
    ChoiceRule(temperature=1.5, top_p=0.5, top_k=20),
    ChoiceRule(top_k=1),
    ChoiceRule(top_p=1e-9),
]


@pytest.mark.parametrize("vocabulary", [320, 331, 4096])
def test_sampled_tokens_follow_their_distribution(vocabulary):
    """Every rule at once, in one batch, as rows of different requests would be."""
    logits = torch.randn(len(RULES), vocabulary, generator=torch.Generator().manual_seed(0)) * 2
    rows = np.repeat(np.arange(len(RULES)), DRAWS // 8)
    chooser = Chooser([RULES[row] for row in rows])
    counts = np.zeros((len(RULES), vocabulary))
    random = np.random.default_rng(7)
    for _ in range(8):
        choices = chooser.choose(logits[rows].clone(), random.random(len(rows)).tolist())
        np.add.at(counts, (rows, choices.tokens.numpy()), 1)
    for row, rule in enumerate(RULES):
        assert chi_square_fits(counts[row], reference(logits[row].numpy(), rule)), rule


def test_the_chi_square_notices_a_wrong_temperature():
    """The test above would be worth nothing if it took anything."""
    logits = torch.randn(1, 320, generator=torch.Generator().manual_seed(0)) * 2
    uniforms = np.random.default_rng(7).random(DRAWS)
    choices = Chooser([ChoiceRule(temperature=0.8)] * DRAWS).choose(
        logits.expand(DRAWS, -1).clone(), uniforms.tolist()
    )
    counts = np.bincount(choices.tokens.numpy(), minlength=320)
    assert not chi_square_fits(counts, reference(logits[0].numpy(), ChoiceRule(temperature=0.9)))


def test_a_flat_distribution_is_cut_exactly_by_top_p():
    """Flatter than the shortcut's 1024 best tokens can cover."""
    logits = torch.randn(1, 8192, generator=torch.Generator().manual_seed(1)) * 0.1
    rule = ChoiceRule(top_p=0.6)
    allowed = reference(logits[0].numpy(), rule) > 0
    assert 1024 < allowed.sum() < 8192
    uniforms = np.linspace(0, 1, 2000, endpoint=False)
    choices = Chooser([rule] * 2000).choose(logits.expand(2000, -1).clone(), uniforms.tolist())
    drawn = np.unique(choices.tokens.numpy())
    assert allowed[drawn].mean() > 0.999  # the token on the border may fall on either side
    assert len(drawn) > 1900


def test_greedy_takes_the_best_token_beside_rows_that_draw():
    logits = torch.randn(3, 64, generator=torch.Generator().manual_seed(2))
    best = logits.argmax(dim=-1)
    rules = [ChoiceRule(temperature=0.0), ChoiceRule(), ChoiceRule(temperature=0.0, top_p=0.1)]
    choices = Chooser(rules).choose(logits.clone(), [0.99, 0.99, 0.99])
    assert choices.tokens[0] == best[0] and choices.tokens[2] == best[2]
    expected = logits.log_softmax(dim=-1)
    torch.testing.assert_close(choices.logprobs[0], expected[0, best[0]])


def test_listed_top_tokens_are_those_of_the_tempered_distribution():
    logits = torch.randn(2, 64, generator=torch.Generator().manual_seed(3)) * 4
    rules = [ChoiceRule(temperature=0.02), ChoiceRule(temperature=3.0)]
    choices = Chooser(rules).choose(logits.clone(), [0.5, 0.5], top=5)
    assert choices.top_ids is not None and choices.top_logprobs is not None
    for row, rule in enumerate(rules):
        expected = (logits[row].double() / rule.temperature).log_softmax(dim=-1).topk(5)
        assert choices.top_ids[row].tolist() == expected.indices.tolist()
        # Far down a cold distribution too, where exp() has long been 0 in float32.
        torch.testing.assert_close(
            choices.top_logprobs[row].double(), expected.values, rtol=1e-4, atol=1e-3
        )


@settings(max_examples=60, deadline=None)
@given(
    vocabulary=st.sampled_from([1, 2, 7, 16, 320, 1000]),
    uniforms=st.lists(
        st.floats(0, 1, exclude_max=True, allow_subnormal=True), min_size=1, max_size=5
    ),
    spread=st.sampled_from([0.0, 1.0, 50.0, 1e4]),
    holes=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_what_is_drawn_can_be_drawn(vocabulary, uniforms, spread, holes, seed):
    """In range, of positive probability, and the same as a float64 cumulative sum says."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(uniforms), vocabulary, generator=generator) * spread
    if holes:
        logits[:, 1::2] = -torch.inf
    choices = Chooser([ChoiceRule()] * len(uniforms)).choose(logits.clone(), uniforms)
    weights = (logits - logits.amax(dim=-1, keepdim=True)).exp().double()
    cumulative = weights.cumsum(dim=-1)
    for row, (token, uniform) in enumerate(zip(choices.tokens.tolist(), uniforms, strict=True)):
        assert 0 <= token < vocabulary
        assert weights[row, token] > 0
        target = uniform * float(cumulative[row, -1])
        slack = 1e-5 * float(cumulative[row, -1])
        before = float(cumulative[row, token] - weights[row, token])
        assert before - slack <= target <= float(cumulative[row, token]) + slack
    assert torch.isfinite(choices.logprobs).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_broken_logits_show_in_their_own_row_only(bad):
    logits = torch.zeros(4, 32)
    logits[1, 3] = bad
    rules = [ChoiceRule(), ChoiceRule(), ChoiceRule(temperature=0.0), ChoiceRule(top_p=0.5)]
    for order in (rules, rules[::-1]):
        choices = Chooser(order).choose(logits.clone(), [0.1, 0.2, 0.3, 0.4])
        finite = torch.isfinite(choices.logprobs).tolist()
        assert finite == [True, False, True, True]
        assert all(0 <= token < 32 for token in choices.tokens.tolist())


def test_alternatives_follow_the_temperature_and_carry_the_models_logprob():
    logits = torch.randn(2, 320, generator=torch.Generator().manual_seed(0)) * 2
    uniforms = torch.from_numpy(np.random.default_rng(1).random((2, DRAWS)))
    tokens, logprobs = draw_many(logits, uniforms, 0.7)
    rule = ChoiceRule(temperature=0.7)
    for row in range(2):
        counts = np.bincount(tokens[row].numpy(), minlength=320)
        assert chi_square_fits(counts, reference(logits[row].numpy(), rule))
    torch.testing.assert_close(logprobs, logits.log_softmax(dim=-1).gather(-1, tokens))
    greedy, _ = draw_many(logits, uniforms[:, :3], 0.0)
    assert greedy.tolist() == [[int(best)] * 3 for best in logits.argmax(dim=-1)]


def test_seeds():
    def numbers(seed: int | None, *place: int) -> list[float]:
        return row_generator(seed, *place).random(4).tolist()

    assert numbers(5, 0) == numbers(5, 0)
    assert numbers(5, 0) != numbers(5, 1)
    assert numbers(5, 0) != numbers(6, 0)
    assert numbers(None, 0) != numbers(None, 0)
    assert len(numbers(-3, 0)) == len(numbers(2**70, 0)) == 4
