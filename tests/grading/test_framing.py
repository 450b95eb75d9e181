"""Frames over pipes: whole, late, cut off, and in a process with very many descriptors."""

from __future__ import annotations

import os
import resource

import pytest

from tinkerlab.grading.worker import framing


@pytest.fixture
def pipe():
    ends = list(os.pipe())
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue


def test_what_is_sent_arrives(pipe) -> None:
    framing.send(pipe[1], {"grades": [1.5, "ü"]})
    assert framing.receive(pipe[0], 1.0) == {"grades": [1.5, "ü"]}


def test_nothing_in_time_and_an_end_are_told_apart(pipe) -> None:
    with pytest.raises(framing.TimedOut):
        framing.receive(pipe[0], 0.01)
    os.close(pipe[1])
    with pytest.raises(framing.Closed):
        framing.receive(pipe[0], 1.0)


def test_descriptors_above_1023(pipe) -> None:
    """``select`` refuses them; a process with many connections has them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2048
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"the limit of open files here is {hard}, under {wanted}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    high = os.dup2(pipe[0], 1500)
    try:
        framing.send(pipe[1], 3)
        assert framing.receive(high, 1.0) == 3
        with pytest.raises(framing.TimedOut):
            framing.receive(high, 0.01)
    finally:
        os.close(high)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
