"""Requests take effect once each, in sequence order."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from tinkerlab.rehearsal.service.ordering import RequestOrder


def make_order(first: int = 1) -> tuple[RequestOrder, list[int], Callable[[int], None]]:
    done: list[int] = []
    order = RequestOrder(lambda work: work(), first=first)
    return order, done, lambda seq: order.submit(seq, lambda: done.append(seq))


@given(st.permutations(list(range(1, 9))))
def test_any_arrival_order_gives_sequence_order(arrival: list[int]) -> None:
    _, done, submit = make_order()
    for seq in arrival:
        submit(seq)
    assert done == list(range(1, 9))


def test_waits_for_a_missing_number() -> None:
    order, done, submit = make_order()
    submit(2)
    submit(3)
    assert done == []
    assert order.held == [2, 3]
    submit(1)
    assert done == [1, 2, 3]
    assert order.held == []


def test_a_refused_number_does_not_hold_up_the_next() -> None:
    order, done, submit = make_order()
    submit(1)
    order.refuse(2)
    submit(3)
    assert done == [1, 3]


def test_a_refused_number_that_comes_back_before_its_successor_keeps_its_place() -> None:
    order, done, submit = make_order()
    order.refuse(1)
    submit(1)
    submit(2)
    assert done == [1, 2]


def test_a_refused_number_that_comes_back_late_still_runs_once() -> None:
    order, done, submit = make_order()
    order.refuse(1)
    submit(2)
    submit(1)
    submit(3)
    assert done == [2, 1, 3]


def test_a_refusal_releases_what_waited_behind_it() -> None:
    order, done, submit = make_order()
    submit(2)
    order.refuse(1)
    assert done == [2]


def test_requests_without_a_number_run_at_once() -> None:
    order, done, _ = make_order()
    order.submit(None, lambda: done.append(0))
    assert done == [0]
