"""Scoring: the right positions, all at once, resumed where it stopped, no broken number kept.

The service is a stand-in here that counts what it is asked; test_evaluate.py uses a real one.
"""

import asyncio
import math

import pytest

from tinkerlab.errors import CheckFailed
from tinkerlab.evaluation import nll


def item(index: int, length: int = 6, scored: tuple[int, ...] = (3, 4, 5)) -> nll.ScoredItem:
    tokens = tuple(range(index * 100, index * 100 + length))
    return nll.ScoredItem(index, f"prompt {index}", f"completion {index}", tokens, scored)


class Service:
    """Answers with logprob -(token % 10) and remembers what it was asked, and how it overlapped."""

    def __init__(self, broken=None, fail_after: int | None = None):
        self.asked: list[int] = []
        self.now = self.most = 0
        self.broken = broken
        self.fail_after = fail_after

    async def compute_logprobs(self, prompt):
        tokens = prompt.to_ints()
        if self.fail_after is not None and len(self.asked) >= self.fail_after:
            raise KeyboardInterrupt
        self.asked.append(tokens[0] // 100)
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.001)
        self.now -= 1
        logprobs = [None, *(-float(token % 10) for token in tokens[1:])]
        if self.broken is not None:
            logprobs[4] = self.broken
        return logprobs


def score(service, items, path, **kwargs):
    return nll.score({"m": service}, items, nll.ScoreLog(path), **kwargs)["m"]


def test_the_nll_is_the_mean_over_the_scored_positions_only(tmp_path):
    assert score(Service(), [item(0)], tmp_path / "log") == [pytest.approx((3 + 4 + 5) / 3)]
    assert score(Service(), [item(1, scored=(1, 5))], tmp_path / "log") == [pytest.approx(3.0)]


def test_scores_come_in_item_order_for_every_model(tmp_path):
    items = [item(index, scored=(1 + index,)) for index in range(5)]
    found = nll.score({"a": Service(), "b": Service()}, items, nll.ScoreLog(tmp_path / "log"))
    assert found == {"a": [1, 2, 3, 4, 5], "b": [1, 2, 3, 4, 5]}


def test_requests_overlap_up_to_the_bound(tmp_path):
    service = Service()
    score(service, [item(index) for index in range(40)], tmp_path / "log", in_flight=8)
    assert service.most == 8


def test_both_models_are_in_flight_together(tmp_path):
    first, second = Service(), Service()
    items = [item(index) for index in range(10)]
    nll.score({"a": first, "b": second}, items, nll.ScoreLog(tmp_path / "log"))
    assert first.most == second.most == 10


def test_an_interrupted_evaluation_asks_only_for_the_rest(tmp_path):
    items = [item(index) for index in range(20)]
    first = Service(fail_after=7)
    with pytest.raises(KeyboardInterrupt):
        score(first, items, tmp_path / "log", in_flight=1)
    second = Service()
    found = score(second, items, tmp_path / "log")
    assert len(second.asked) == 13
    assert set(first.asked) | set(second.asked) == set(range(20))
    assert found == score(Service(), items, tmp_path / "fresh")


def test_a_torn_last_line_of_the_log_is_scored_again(tmp_path):
    path = tmp_path / "log"
    items = [item(index) for index in range(3)]
    score(Service(), items, path)
    path.write_bytes(path.read_bytes()[:-9])
    service = Service()
    assert score(service, items, path) == [4.0, 4.0, 4.0]
    assert len(service.asked) == 1


def test_another_model_or_other_scored_tokens_are_never_taken_from_the_log(tmp_path):
    path = tmp_path / "log"
    score(Service(), [item(0)], path)
    again = Service()
    nll.score({"other": again}, [item(0)], nll.ScoreLog(path))
    score(again, [item(0, scored=(4, 5))], path)
    score(again, [item(0, length=7)], path)
    assert again.asked == [0, 0, 0]


@pytest.mark.parametrize("broken", [math.nan, -math.inf, None])
def test_a_logprob_that_is_no_number_stops_the_evaluation_and_is_not_kept(tmp_path, broken):
    class Broken(Service):
        async def compute_logprobs(self, prompt):
            logprobs = await super().compute_logprobs(prompt)
            logprobs[4] = broken
            return logprobs

    with pytest.raises(CheckFailed, match=r"item 0: the logprob of token 4 is"):
        score(Broken(), [item(0)], tmp_path / "log")
    assert not (tmp_path / "log").exists()


def test_the_wrong_number_of_logprobs_is_refused(tmp_path):
    class Short(Service):
        async def compute_logprobs(self, prompt):
            return (await super().compute_logprobs(prompt))[1:]

    with pytest.raises(CheckFailed, match="5 logprobs for 6 tokens"):
        score(Short(), [item(0)], tmp_path / "log")


def test_progress_counts_what_was_there_before(tmp_path):
    items = [item(index) for index in range(4)]
    score(Service(), items[:2], tmp_path / "log")
    seen = []
    score(
        Service(), items, tmp_path / "log", progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(2, 4), (3, 4), (4, 4)]


def test_records_hold_the_contract_fields():
    assert nll.records([item(2)], [0.5]) == [
        {
            "index": 2,
            "prompt": "prompt 2",
            "completion": "completion 2",
            "nll": 0.5,
            "num_tokens": 3,
        }
    ]
