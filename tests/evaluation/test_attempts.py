"""Sampling and grading side by side: the bound, the order, failures, what is kept."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tinkerlab.errors import InputError
from tinkerlab.evaluation import attempts
from tinkerlab.evaluation.attempts import AttemptLog, Sampling
from tinkerlab.grading import Grade
from tinkerlab.tasks import Task


class Renderer:
    """Prompts are characters, replies are characters."""

    def build_generation_prompt(self, messages):
        tokens = [ord(c) for c in messages[-1]["content"]]
        return SimpleNamespace(to_ints=lambda: tokens)

    def parse_response(self, tokens):
        return {"role": "assistant", "content": "".join(map(chr, tokens))}, None

    def get_stop_sequences(self):
        return [0]


class Client:
    """Echoes the prompt, in an order of its own, and counts what is in flight."""

    def __init__(self, fails_at=None):
        self.now = self.most = self.asked = 0
        self.fails_at = fails_at

    async def sample(self, prompt, num_samples, sampling_params):
        self.asked += 1
        self.now += 1
        self.most = max(self.most, self.now)
        number = self.asked
        await asyncio.sleep(0.001 * (number % 3))
        self.now -= 1
        if number == self.fails_at:
            raise ConnectionError("gone")
        sequence = SimpleNamespace(tokens=prompt.to_ints(), stop_reason="stop")
        return SimpleNamespace(sequences=[sequence] * num_samples)


class Grader:
    name = "length"

    def __init__(self):
        self.batches = []

    def grade(self, attempts):
        self.batches.append(len(attempts))
        return [Grade(float(len(attempt.completion))) for attempt in attempts]

    def close(self):
        pass


def go(clients, log, *, count=40, grader=None, samples=1, key="g", in_flight=8):
    sampling = Sampling(samples=samples)
    tasks = [Task([{"role": "user", "content": "x" * (i + 1)}]) for i in range(count)]
    renderer = Renderer()
    items = attempts.make_items(tasks, renderer, sampling)
    return attempts.run(
        clients, items, grader or Grader(), key, log,
        renderer=renderer, tokenizer=None, sampling=sampling, in_flight=in_flight,
    )  # fmt: skip


def test_all_models_are_sampled_up_to_the_bound_and_stay_in_order(tmp_path):
    a, b = Client(), Client()
    found = go({"a": a, "b": b}, AttemptLog(tmp_path / "log"), samples=2)
    for model in ("a", "b"):
        assert [[g.score for g in item.grades] for item in found[model]] == [
            [float(i + 1)] * 2 for i in range(40)
        ]
    assert 4 < a.most + b.most <= 16
    assert max(a.most, b.most) <= 8


def test_what_was_sampled_is_not_sampled_again_and_a_new_grader_grades_it(tmp_path):
    path = tmp_path / "log"
    first, second = Client(), Client()
    log = AttemptLog(path)
    go({"a": first}, log)
    log.close()
    again, grader = AttemptLog(path), Grader()
    go({"a": second}, again, grader=grader)
    assert (second.asked, sum(grader.batches)) == (0, 0)
    found = go({"a": second}, again, grader=grader, key="another")
    assert (second.asked, sum(grader.batches)) == (0, 40)
    assert len(found["a"]) == 40


def test_after_a_failure_nothing_new_is_asked_and_the_rest_is_kept(tmp_path):
    client = Client(fails_at=10)
    path = tmp_path / "log"
    log = AttemptLog(path)
    with pytest.raises(ConnectionError, match="gone"):
        go({"a": client}, log)
    log.close()
    assert client.asked < 40
    second = Client()
    assert len(go({"a": second}, AttemptLog(path))["a"]) == 40
    assert second.asked == 40 - (client.asked - 1)


def test_a_grader_that_raises_ends_the_run_and_keeps_the_replies(tmp_path):
    class Broken(Grader):
        def grade(self, attempts):
            raise OSError("no judge")

    client, path = Client(), tmp_path / "log"
    log = AttemptLog(path)
    with pytest.raises(OSError, match="no judge"):
        go({"a": client}, log, grader=Broken())
    log.close()
    second = Client()
    go({"a": second}, AttemptLog(path))
    assert second.asked + client.asked == 40


def test_another_temperature_seed_or_place_is_another_reply():
    tasks = [Task([{"role": "user", "content": "same"}])] * 2
    keys = {
        item.key
        for sampling in (Sampling(), Sampling(temperature=0.5), Sampling(seed=1))
        for item in attempts.make_items(tasks, Renderer(), sampling)
    }
    assert len(keys) == 6


def test_a_system_prompt_goes_before_prompts_without_one():
    seen = []

    class Spy(Renderer):
        def build_generation_prompt(self, messages):
            seen.append([message["role"] for message in messages])
            return super().build_generation_prompt(messages)

    system = {"role": "system", "content": "s"}
    user = {"role": "user", "content": "u"}
    attempts.make_items([Task([user]), Task([system, user])], Spy(), Sampling(), "be brief")
    assert seen == [["system", "user"], ["system", "user"]]


def test_a_judge_is_asked_about_every_reply_and_believed(tmp_path):
    """The judging model here says yes where the reply in its prompt is long."""
    from tinkerlab.evaluation.judge import Judge
    from tinkerlab.grading import Attempt

    class Future:
        def __init__(self, text):
            sequence = SimpleNamespace(tokens=list(map(ord, text)))
            self.response = SimpleNamespace(sequences=[sequence])

        def result(self):
            return self.response

    class Judging:
        asked = 0

        def sample(self, prompt, num_samples, sampling_params):
            self.asked += 1
            reply = "".join(map(chr, prompt.to_ints())).split("|")[1]
            return Future(f"Seen.\nVERDICT: {'yes' if len(reply) > 3 else 'no'}")

    client: Any = Judging()
    judge = Judge("judge", client, Renderer(), None, "{question}|{completion}|{answer}")
    prompt = [{"role": "user", "content": "q"}]
    grades = judge.grade(
        [Attempt(text, prompt, "a") for text in ("long one", "no", "VERDICT: yes")]
    )
    assert [grade.correct for grade in grades] == [True, False, True]
    assert client.asked == 3
    assert judge.needs_answer


def test_a_log_of_something_else_is_refused(tmp_path):
    path = tmp_path / "log"
    path.write_text('{"model": "m", "item": "i", "replies": [{"words": 3}]}\n')
    with pytest.raises(InputError, match="record 1: not one of an evaluation"):
        AttemptLog(path)
