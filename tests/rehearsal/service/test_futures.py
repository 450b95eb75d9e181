"""Results are kept: late, repeated, after a restart, in groups."""

import asyncio
import json
import threading
from pathlib import Path

import pytest

from tinkerlab.rehearsal.errors import Gone, NotFound
from tinkerlab.rehearsal.service.futures import PROTOBUF, Futures
from tinkerlab.rehearsal.service.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_a_request_begins_once(store: Store) -> None:
    futures = Futures(store)
    assert futures.begin("a")
    assert not futures.begin("a")
    futures.finish("a", {"x": 1})
    assert not futures.begin("a")
    assert futures.known("a")
    assert not futures.known("b")


async def _result(futures: Futures, request_id: str, timeout: float = 5.0):
    return await futures.wait(request_id, timeout)


def test_a_result_is_fetched_more_than_once_and_after_a_restart(store: Store) -> None:
    futures = Futures(store)
    futures.begin("a")
    futures.finish("a", b"\x01\x02")
    for again in (futures, futures, Futures(store)):
        result = asyncio.run(_result(again, "a"))
        assert result is not None
        assert (result.content_type, result.body) == (PROTOBUF, b"\x01\x02")


def test_what_was_pending_at_a_restart_is_gone_and_the_unknown_is_not_found(store: Store) -> None:
    Futures(store).begin("a")
    restarted = Futures(store)
    with pytest.raises(Gone):
        asyncio.run(_result(restarted, "a"))
    with pytest.raises(NotFound):
        asyncio.run(_result(restarted, "never"))


def test_pending_answers_none_and_a_finish_from_a_thread_wakes_the_waiter(store: Store) -> None:
    futures = Futures(store)
    futures.begin("a")
    assert asyncio.run(_result(futures, "a", 0.01)) is None

    async def wait_while_a_thread_finishes():
        threading.Timer(0.05, futures.fail, ("a", "no", "user")).start()
        return await futures.wait("a", 30.0)

    result = asyncio.run(wait_while_a_thread_finishes())
    assert result is not None
    assert json.loads(result.body) == {"error": "no", "category": "user"}


def test_a_group_lists_each_completion_once_in_order(store: Store) -> None:
    futures = Futures(store)
    for name in ("a", "b", "c"):
        futures.begin(name, group="g")
    futures.begin("other", group="h")
    futures.finish("b", b"12345")
    futures.fail("a", "no", "server")
    futures.finish("other", b"")

    async def poll(after: int, timeout: float):
        return await futures.wait_group("g", after, timeout)

    first = asyncio.run(poll(0, 1.0))
    assert [(row[1], row[2]) for row in first] == [("b", "finished"), ("a", "failed")]
    assert first[0][3] == 5
    assert asyncio.run(poll(first[-1][0], 0.0)) == []

    async def wait_for_the_last():
        threading.Timer(0.05, futures.finish, ("c", b"")).start()
        return await futures.wait_group("g", first[-1][0], 30.0)

    assert [row[1] for row in asyncio.run(wait_for_the_last())] == ["c"]
    # A restarted service goes on numbering after what it has given out.
    again = Futures(Store(store.root))
    again.begin("d", group="g")
    again.finish("d", b"")
    assert asyncio.run(again.wait_group("g", 0, 0.0))[-1][1] == "d"
