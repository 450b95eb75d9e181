"""Parsing of --fault and which requests a fault strikes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkerlab.errors import InputError
from tinkerlab.rehearsal.service.faults import KINDS, Fault, Faults


def test_arguments_are_read() -> None:
    fault = Fault.parse("429:3x,10%,on=/optim_step")
    assert (fault.kind, fault.count, fault.share, fault.on) == ("429", 3, 0.1, "/optim_step")
    assert Fault.parse("latency:200ms").seconds == pytest.approx(0.2)
    assert Fault.parse("capacity:1.5s").seconds == pytest.approx(1.5)


@pytest.mark.parametrize("text", ["", "nope", "429:often", "429:200%", "429:on=", "latency:-1s"])
def test_what_cannot_be_read_is_refused_by_name(text: str) -> None:
    with pytest.raises(InputError, match="--fault"):
        Fault.parse(text)


@given(st.text())
def test_parsing_never_raises_anything_else(text: str) -> None:
    try:
        Fault.parse(text)
    except InputError as error:
        assert "\n" not in str(error) or "\n" in text


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_strikes_its_own_route(kind: str) -> None:
    fault = Fault.parse(kind)
    assert fault.strikes(f"/api/v1{KINDS[kind].on.removeprefix('/api/v1')}")
    assert not fault.strikes("/files/x")


def test_a_count_ends_the_fault() -> None:
    fault = Fault.parse("500:2x")
    assert [fault.strikes("/api/v1/forward_backward") for _ in range(4)] == [True] * 2 + [False] * 2


def test_a_share_strikes_about_that_many() -> None:
    fault = Fault.parse("500:25%")
    hits = sum(fault.strikes("/api/v1/forward_backward") for _ in range(2000))
    assert 400 < hits < 600


def test_a_capacity_pause_lasts_from_its_first_hit() -> None:
    now = [100.0]
    faults = Faults([Fault.parse("capacity:5s")], clock=lambda: now[0])
    now[0] = 200.0
    assert faults.paused("/api/v1/retrieve_future")
    now[0] = 204.9
    assert faults.paused("/api/v1/retrieve_future")
    now[0] = 205.1
    assert not faults.paused("/api/v1/retrieve_future")


def test_a_session_expires_after_its_time_but_new_ones_may_start() -> None:
    now = [0.0]
    faults = Faults([Fault.parse("session-expiry:5s")], clock=lambda: now[0])
    assert not faults.expired("/api/v1/asample")
    now[0] = 6.0
    assert faults.expired("/api/v1/asample")
    assert not faults.expired("/api/v1/create_session")
