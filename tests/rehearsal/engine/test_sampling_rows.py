"""The running batch's buffers: rows that join, grow, move and leave keep what is theirs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tinkerlab.rehearsal.engine.kv_cache import CapturedPrompts, GrowingPrompt, PromptKV
from tinkerlab.rehearsal.engine.sampling_rows import RowGroup, RunningRows, SamplerLimits

LAYERS, HEADS, KEY, VALUE = 2, 3, 4, 5  # keys and values of different size, as MLA has


def prompt_of(number: float, length: int) -> PromptKV:
    """Every entry holds ``number``, so that a mix-up shows."""
    return PromptKV(
        [
            (torch.full((HEADS, length, KEY), number), torch.full((HEADS, length, VALUE), number))
            for _ in range(LAYERS)
        ]
    )


def row_of(adapter: object) -> Any:
    job = SimpleNamespace(adapter=adapter, over=False)
    return SimpleNamespace(job=job, rule=None, length=0, tokens=[])


def grow(group: RowGroup, numbers: dict[int, float]) -> None:
    """One decoding step in which each row's new token has the row's own number."""
    lengths = torch.tensor([row.length for row in group.rows])
    cache = group._buffers.step(0, len(group.rows), lengths, int(lengths.max()) + 1)
    own = torch.tensor([numbers[id(row)] for row in group.rows]).view(-1, 1, 1, 1)
    for layer in range(LAYERS):
        keys, values = cache.update(
            own.expand(-1, HEADS, 1, KEY), own.expand(-1, HEADS, 1, VALUE), layer
        )
        assert keys.shape[2] == values.shape[2] == cache.get_seq_length() + 1
    for row in group.rows:
        row.length += 1


def check(group: RowGroup, numbers: dict[int, float]) -> None:
    for index, row in enumerate(group.rows):
        for keys, values in group.read(index).layers:
            assert keys.shape == (HEADS, row.length, KEY)
            assert values.shape == (HEADS, row.length, VALUE)
            assert (keys == numbers[id(row)]).all() and (values == numbers[id(row)]).all()
    # Rows of one adapter stand together: as many segments as adapters.
    assert len(group.segments()) == len({id(row.job.adapter) for row in group.rows})


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("jjjlg"), st.integers(0, 3), st.integers(1, 9)), max_size=40)
)
def test_any_order_of_joining_growing_and_leaving(events):
    adapters = [None, object(), object(), object()]
    group = RowGroup(64)
    numbers: dict[int, float] = {}
    kept = []  # so that no id() is used twice
    for number, (event, which, amount) in enumerate(events):
        if event == "j":
            row = row_of(adapters[which])
            kept.append(row)
            numbers[id(row)] = float(number + 1)
            group.join(row, prompt_of(number + 1, amount))
        elif event == "l" and group.rows:
            leaving = group.rows[amount % len(group.rows)]
            group.leave(amount % len(group.rows))
            assert all(row is not leaving for row in group.rows)
        elif event == "g" and group.rows:
            grow(group, numbers)
        check(group, numbers)


def test_what_a_broken_row_leaves_behind_is_wiped():
    group = RowGroup(16)
    row = row_of(None)
    group.join(row, prompt_of(float("nan"), 8))
    group.leave(0, dirty=True)
    group.join(row_of(None), prompt_of(1.0, 3))
    assert all(
        bool(torch.isfinite(tensor).all()) for pair in group._buffers._layers for tensor in pair
    )


def test_fresh_buffers_hold_no_rubbish():
    group = RowGroup(16)
    group.join(row_of(None), prompt_of(1.0, 3))
    for keys, values in group._buffers._layers:
        assert keys[0, :, 3:].abs().sum() == values[0, :, 3:].abs().sum() == 0


def test_a_row_moves_to_wider_buffers_when_it_outgrows_its_own():
    rows = RunningRows(SamplerLimits())
    numbers: dict[int, float] = {}
    for number, length in enumerate((511, 20), start=1):
        row = row_of(None)
        numbers[id(row)] = float(number)
        rows.add(row, prompt_of(number, length))
    assert rows.admit() == []
    (group,) = rows.groups()
    assert [group.width] == [512]
    grow(group, numbers)
    rows.tidy(group)
    assert [(g.width, [row.length for row in g.rows]) for g in rows.groups()] == [
        (512, [21]),
        (2048, [512]),
    ]
    for moved in rows.groups():
        check(moved, numbers)


def test_over_budget_the_rows_with_the_fewest_tokens_go():
    per_token = prompt_of(0.0, 1).bytes_per_token
    assert per_token == LAYERS * HEADS * (KEY + VALUE) * 4
    rows = RunningRows(SamplerLimits(cache_bytes=100 * per_token))
    for tokens in (9, 2, 5):
        row = row_of(None)
        row.tokens = [0] * tokens
        rows.add(row, prompt_of(1.0, 40))
    (sent_back,) = rows.admit()
    assert len(sent_back.tokens) == 2
    assert rows.active == 2
    assert not rows.has_room(40, 1)


def test_a_row_alone_may_exceed_the_budget():
    rows = RunningRows(SamplerLimits(cache_bytes=1))
    rows.add(row_of(None), prompt_of(1.0, 40))
    assert rows.admit() == [] and rows.active == 1


@pytest.mark.parametrize("length", [1, 7, 12])
def test_a_growing_prompt_shows_each_chunk_what_came_before(length):
    whole = torch.randn(1, HEADS, length, KEY, generator=torch.Generator().manual_seed(0))
    growing = GrowingPrompt(length)
    for start in range(0, length, 5):
        end = min(start + 5, length)
        assert growing.get_mask_sizes(end - start, 0) == (end, 0)
        keys, values = growing.update(whole[:, :, start:end], 2 * whole[:, :, start:end], 0)
        assert torch.equal(keys, whole[:, :, :end]) and torch.equal(values, 2 * whole[:, :, :end])
        growing.done = end
    finished = growing.finish()
    assert finished.length == length
    assert torch.equal(finished.layers[0][0], whole[0])


def test_a_captured_prompt_is_its_own_row_without_padding():
    captured = CapturedPrompts()
    keys = torch.arange(2 * HEADS * 6 * KEY, dtype=torch.float32).view(2, HEADS, 6, KEY)
    captured.update(keys, -keys, 0)
    prompt = captured.row(1, 4)
    assert prompt.length == 4
    assert torch.equal(prompt.layers[0][0], keys[1, :, :4])
    assert torch.equal(prompt.layers[0][1], -keys[1, :, :4])
