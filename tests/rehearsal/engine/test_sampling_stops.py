"""Stop tokens and stop strings."""

from __future__ import annotations

import functools
from typing import Any

import engine_reference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_reference import prompt, request

from tinkerlab.rehearsal.engine.sampling import Sampler
from tinkerlab.rehearsal.engine.stop_conditions import StopWatch


@functools.cache
def tokenizer() -> Any:
    """One token for each byte: every other character is split over tokens."""
    return engine_reference.base("llama").tokenizer


class Pieces:
    """A tokenizer whose token ``i`` is ``pieces[i]``, however long."""

    def __init__(self, *pieces: str) -> None:
        self.pieces = pieces

    def decode(self, tokens: list[int], **_: object) -> str:
        return "".join(self.pieces[token] for token in tokens)


def tokens_until_stop(tokens: list[int], stops: tuple[str, ...], decoder: Any) -> int | None:
    watch = StopWatch(frozenset(), stops, decoder)
    for count, token in enumerate(tokens, start=1):
        if watch.ends_with(token):
            return count
    return None


def test_a_token_longer_than_the_stop_string_is_kept_whole():
    assert tokens_until_stop([0, 1, 0], ("..",), Pieces("a", "...")) == 2


def test_a_stop_string_split_over_tokens_ends_with_its_last_token():
    pieces = Pieces("<", "|end", "|>", "x")
    assert tokens_until_stop([3, 0, 1, 2, 3], ("<|end|>",), pieces) == 4
    assert tokens_until_stop([3, 0, 1, 3, 2], ("<|end|>",), pieces) is None


def test_the_first_of_several_stop_strings_wins():
    pieces = Pieces("a", "b", "c")
    assert tokens_until_stop([0, 1, 2], ("zz", "bc", "ab"), pieces) == 2


def test_an_empty_stop_string_stops_nothing():
    assert tokens_until_stop([0, 1], ("",), Pieces("a", "b")) is None


@settings(max_examples=80, deadline=None)
@given(text=st.text(min_size=1, max_size=30), stop=st.text(min_size=1, max_size=3), data=st.data())
def test_stops_where_the_decoded_text_first_holds_the_string(text, stop, data):
    """Against decoding everything anew after each token; characters of 1 to 4 bytes."""
    if "\ufffd" in text + stop:
        return
    cut = data.draw(st.integers(0, len(text)))
    whole = text[:cut] + stop + text[cut:]
    tokens = tokenizer().encode(whole, add_special_tokens=False)
    expected = next(
        count
        for count in range(1, len(tokens) + 1)
        if stop in tokenizer().decode(tokens[:count], clean_up_tokenization_spaces=False)
    )
    assert tokens_until_stop(tokens, (stop,), tokenizer()) == expected


@settings(max_examples=40, deadline=None)
@given(tokens=st.lists(st.integers(0, 258), max_size=40))
def test_bytes_that_are_no_text_neither_crash_nor_stop(tokens):
    assert tokens_until_stop(tokens, ("\x00no model says this\x00",), tokenizer()) is None


def test_the_sampler_stops_on_strings_and_tokens():
    base = engine_reference.base("llama")
    sampler = Sampler(base)
    try:
        free = sampler.submit(request(prompt(8), 60, seed=3)).result(60).sequences[0]
        tokens = free.tokens.tolist()
        text = base.tokenizer.decode(tokens)
        # Two neighbouring characters of the completion, neither of them broken bytes.
        place = next(i for i in range(5, len(text) - 1) if "\ufffd" not in text[i : i + 2])
        stop = text[place : place + 2]
        expected = next(n for n in range(1, 61) if stop in base.tokenizer.decode(tokens[:n]))
        by_string = sampler.submit(request(prompt(8), 60, seed=3, stop_strings=("zq", stop)))
        stops = frozenset([tokens[9], tokens[20]])
        by_token = sampler.submit(request(prompt(8), 60, seed=3, stop_tokens=stops))
        both = [by_string.result(60).sequences[0], by_token.result(60).sequences[0]]
    finally:
        sampler.close()
    assert free.stop_reason == "length"
    assert [sequence.stop_reason for sequence in both] == ["stop", "stop"]
    assert both[0].tokens.tolist() == tokens[:expected]
    assert (
        both[1].tokens.tolist() == tokens[: 1 + next(i for i, t in enumerate(tokens) if t in stops)]
    )
    assert all(len(sequence.logprobs) == len(sequence.tokens) for sequence in both)


def test_a_stop_on_the_last_allowed_token_is_a_stop():
    base = engine_reference.base("llama")
    sampler = Sampler(base)
    try:
        first = sampler.submit(request(prompt(8), 1, temperature=0.0)).result(60).sequences[0]
        stop = frozenset(first.tokens.tolist())
        again = sampler.submit(request(prompt(8), 1, temperature=0.0, stop_tokens=stop))
        assert again.result(60).sequences[0].stop_reason == "stop"
    finally:
        sampler.close()


@pytest.mark.parametrize("stops", [(), ("never this",)])
def test_no_stop_at_all_fills_max_tokens(stops):
    base = engine_reference.base("llama")
    sampler = Sampler(base)
    try:
        # So hot that end-of-sequence tokens come up; an empty stop list disables them.
        options = {"temperature": 50.0, "seed": 1, "stop_strings": stops}
        result = sampler.submit(request(prompt(5), 400, **options)).result(120)
    finally:
        sampler.close()
    tokens = result.sequences[0].tokens.tolist()
    assert len(tokens) == 400
    assert base.eos_token_ids & set(tokens)
