"""The judge of a trace, on traces of which every second is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tinkerlab.diagnosis.stalls.judge import judge
from tinkerlab.diagnosis.stalls.stacks import Frame, Stack, holder, parse_faulthandler
from tinkerlab.diagnosis.stalls.timeline import Cover, build
from tinkerlab.diagnosis.stalls.trace import Outcome, read_folder

PYTHON = "/usr/lib/python3.11/"
WAITS = [
    [PYTHON + "threading.py", 327, "Condition.wait"],
    [PYTHON + "concurrent/futures/_base.py", 451, "Future.result"],
    ["/x/site-packages/tinker/lib/public_interfaces/api_future.py", 150, "result"],
    ["/home/me/train.py", 9, "main"],
]
COMPUTES = [["/home/me/train.py", 12, "collate"], ["/home/me/train.py", 9, "main"]]
LOOP = [
    [PYTHON + "asyncio/base_events.py", 1884, "BaseEventLoop._run_once"],
    [PYTHON + "asyncio/base_events.py", 607, "BaseEventLoop.run_forever"],
]
SELECTS = [[PYTHON + "selectors.py", 468, "EpollSelector.select"], *LOOP]
SERIALIZES = [
    ["/x/site-packages/tinker/proto/request_conv.py", 40, "_tensor_data_to_proto"],
    [PYTHON + "asyncio/events.py", 80, "Handle._run"],
]


class Made:
    """Writes a trace whose session starts at 0 s."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records: list[dict[str, Any]] = []
        self.stacks: list[Any] = []
        self.frames: list[Any] = []
        start = {"argv": ["python", "train.py"], "pid": 7, "parent": 1, "main": 16}
        self.put("start", 0.0, **start)
        self.put("note", 0.0, text="sdk imported")

    def put(self, kind: str, t: float, **values: Any) -> None:
        self.records.append({"k": kind, "t": t, **values})

    def stack(self, frames: list[list[Any]]) -> int:
        if frames not in self.stacks:
            ids = []
            for frame in frames:
                self.frames.append(frame)
                ids.append(len(self.frames) - 1)
                self.put("frame", 0.0, id=ids[-1], at=frame)
            self.stacks.append(frames)
            self.put("stack", 0.0, id=len(self.stacks) - 1, frames=ids)
        return self.stacks.index(frames)

    def sample(self, start: float, end: float, main=WAITS, sdk=SELECTS, ping: float = 0.0) -> None:
        stacks = {"main": self.stack(main), "sdk": self.stack(sdk), "others": []}
        self.put("sample", end, until=end, passed=end - start, ping=ping, **stacks)

    def late(self, end: float, seconds: float, dump: str | None = None) -> None:
        stacks = {"main": self.stack(COMPUTES), "sdk_stack": self.stack(SELECTS), "others": []}
        self.put("late", end, seconds=seconds, dump=dump, sdk=32, **stacks)

    def request(self, number: int, method: str, start: float, end: float | None) -> None:
        at = ["/home/me/train.py", 20 + number % 2, "main"]
        self.put("submit", start, id=number, method=method, at=at)
        if end is not None:
            self.put("done", end, id=number, error=None)

    def judged(self, outcome: Outcome | None = None) -> dict[str, Any]:
        text = "\n".join(json.dumps(record) for record in self.records) + "\n"
        (self.folder / "trace-7.jsonl").write_text(text)
        outcome = outcome or Outcome(code=0)
        return judge(read_folder(self.folder, outcome), outcome, self.folder).as_dict()


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


def causes(document: dict[str, Any]) -> list[str]:
    return [finding["cause"] for finding in document["findings"]]


def step(made: Made, number: int, start: float, end: float) -> None:
    made.request(2 * number, "TrainingClient.forward_backward", start, (start + end) / 2)
    made.request(2 * number + 1, "TrainingClient.optim_step", start, end)


def test_waiting_on_the_service_is_no_fault(made):
    for number in range(10):
        step(made, number, number, number + 0.99)
        made.sample(number, number + 1)
    document = made.judged()
    assert causes(document) == []
    assert "waiting on the service" in document["verdict"]
    assert document["spent"]["service"] == pytest.approx(9.9, abs=0.05)


def test_computing_under_a_request_in_flight_is_no_fault(made):
    step(made, 0, 0, 10)
    made.sample(0, 10, main=COMPUTES)
    document = made.judged()
    assert causes(document) == []
    assert document["spent"]["overlap"] == pytest.approx(10)


@pytest.mark.parametrize(
    ("gap", "named"), [(0.05, []), (0.09, []), (0.15, ["client-stall"]), (0.5, ["client-stall"])]
)
def test_a_stall_is_named_from_a_tenth_of_the_run(made, gap, named):
    for number in range(20):
        step(made, number, number, number + 1 - gap)
        made.sample(number, number + 1 - gap)
        made.sample(number + 1 - gap, number + 1, main=COMPUTES)
    document = made.judged()
    assert causes(document) == named
    if named:
        finding = document["findings"][0]
        assert finding["where"].endswith("train.py:12 in collate")
        assert "19 times" in finding["evidence"][0]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(5.0, None), (12.0, "warns after 120 s"), (130.0, "the session may expire")],
)
def test_missed_heartbeats_are_told(made, seconds, said):
    step(made, 0, 0, 0.5)
    made.sample(0, 0.5)
    made.sample(0.5, 0.5 + seconds, main=COMPUTES, sdk=SERIALIZES, ping=seconds)
    step(made, 1, 0.5 + seconds, 1 + seconds)
    made.sample(0.5 + seconds, 1 + seconds)
    document = made.judged()
    assert causes(document) == ["sdk-loop-blocked"]
    finding = document["findings"][0]
    assert finding["where"] == "tinker/proto/request_conv.py:40 in _tensor_data_to_proto"
    assert "serialization_test.py" in finding["then"]
    heartbeats = [fact for fact in finding["evidence"] if "heartbeat" in fact]
    assert bool(heartbeats) == (said is not None)
    assert said is None or said in heartbeats[0]


def test_a_starved_loop_is_not_a_blocked_one(made):
    step(made, 0, 0, 5)
    made.sample(0, 5, sdk=SELECTS, ping=3.0)
    assert causes(made.judged()) == []


def test_a_long_hold_outside_of_the_work_still_costs_heartbeats(made):
    made.request(0, "ServiceClient.create_lora_training_client", 0, 1)
    made.sample(0, 1)
    made.late(16, 15.0)
    made.sample(16, 17)
    step(made, 1, 17, 18)
    made.sample(17, 18)
    document = made.judged()
    assert causes(document) == ["gil-held"]
    assert "the whole run" in document["findings"][0]["evidence"][0]


def test_faulthandlers_dump_tells_who_kept_the_gil(made):
    step(made, 0, 0, 1)
    made.sample(0, 1)
    dump = (
        "Timeout (0:00:00.600000)!\nThread 0x0000000000000063 (most recent call first):\n"
        '  File "/home/me/native.py", line 5 in crunch\n'
        "Thread 0x0000000000000010 (most recent call first):\n"
        f'  File "{PYTHON}threading.py", line 327 in wait\n'
        '  File "/home/me/train.py", line 9 in main\n'
    )
    made.late(4, 3.0, dump)
    step(made, 1, 4, 5)
    made.sample(4, 5)
    document = made.judged()
    assert causes(document) == ["gil-held"]
    assert document["findings"][0]["where"].endswith("native.py:5 in crunch")


IMPORTS = [
    ["/x/site-packages/pandas/core/ops.py", 59, "<module>"],
    ["<frozen importlib._bootstrap>", 241, "_call_with_frames_removed"],
    ["/home/me/train.py", 12, "collate"],
]
OWN_MODULE = [["/home/me/data.py", 3, "<module>"], *IMPORTS[1:]]


@pytest.mark.parametrize(("stack", "named"), [(IMPORTS, []), (OWN_MODULE, ["client-stall"])])
def test_importing_a_library_is_a_start_and_no_stall(made, stack, named):
    for number in range(2):
        step(made, number, 4 * number, 4 * number + 1)
        made.sample(4 * number, 4 * number + 1)
        made.sample(4 * number + 1, 4 * number + 4, main=stack)
    document = made.judged()
    assert causes(document) == named
    assert document["spent"]["client" if named else "import"] == pytest.approx(3)


def test_unfinished_work_counts_to_the_end_of_a_stopped_run(made):
    made.request(0, "TrainingClient.forward_backward", 0, None)
    made.sample(0, 30)
    document = made.judged(Outcome(code=130, at=30.0, interrupted=True))
    assert causes(document) == ["no-answer"]
    assert causes(made.judged(Outcome(code=0))) == []


@pytest.mark.parametrize(("count", "named"), [(2, []), (3, ["waits-between-submissions"])])
def test_steps_that_wait_are_counted(made, count, named):
    for number in range(count):
        made.request(2 * number, "TrainingClient.forward_backward", number, number + 0.4)
        made.request(2 * number + 1, "TrainingClient.optim_step", number + 0.45, number + 0.9)
        made.sample(number, number + 0.95)
    assert causes(made.judged()) == named


def test_turns_of_several_conversations_overlap_and_are_fine(made):
    for number in range(12):
        made.request(number, "SamplingClient.sample", number * 0.5, number * 0.5 + 0.9)
    made.sample(0, 6.4)
    assert causes(made.judged()) == []


@pytest.mark.parametrize(
    ("statuses", "named"),
    [
        ([200] * 20, []),
        ([408] * 10 + [200] * 10, []),
        ([200] * 18 + [502] * 2, []),
        ([200] * 10 + [502] * 5, ["service-errors"]),
        ([None] * 5, ["service-unreachable"]),
    ],
)
def test_failed_calls_are_counted(made, statuses, named):
    step(made, 0, 0, 5)
    made.sample(0, 5)
    for status in statuses:
        error = None if status else "ConnectError"
        path = "/api/v1/retrieve_future"
        made.put("http", 1.0, path=path, seconds=0.01, status=status, error=error)
    assert causes(made.judged()) == named


def test_a_process_without_an_end_is_noted(made):
    step(made, 0, 0, 1)
    made.sample(0, 1)
    assert any("no time to end its trace" in note for note in made.judged()["notes"])
    made.put("end", 1.0)
    assert not any("no time to end its trace" in note for note in made.judged()["notes"])


def test_cover_cuts():
    cover = Cover([(1, 2), (1.5, 3), (5, 6)])
    assert cover.spans == [(1, 3), (5, 6)]
    assert cover.outside([(0, 10)]) == [(0, 1), (3, 5), (6, 10)]
    assert cover.outside([(1.2, 2.8)]) == []
    assert cover.outside([(2, 4), (5.5, 7)]) == [(3, 4), (6, 7)]
    assert Cover([]).outside([(0, 1)]) == [(0, 1)]
    assert cover.seconds(2, 5.5) == pytest.approx(1.5)


def test_faulthandler_text_is_read_as_far_as_it_goes():
    text = (
        'Thread 0x00ab (most recent call first):\n  File "a b.py", line 3 in f\n'
        '  File "c.py", line ??? in g\n\n'
        'Current thread 0x00ac (most recent call first):\n  File "d.py", li'
    )
    stacks = parse_faulthandler(text)
    assert stacks == {0xAB: Stack((Frame("a b.py", 3, "f"), Frame("c.py", 0, "g")))}


def test_a_thread_that_sleeps_does_not_hold_the_gil(tmp_path):
    sleeps, works = tmp_path / "sleeps.py", tmp_path / "works.py"
    sleeps.write_text("time.sleep(9)\n")
    works.write_text("native.crunch(9)\n")
    asleep = Stack((Frame(str(sleeps), 1, "main"),))
    busy = Stack((Frame(str(works), 1, "worker"),))
    assert holder([asleep, busy]) is busy
    assert holder([asleep]) is None


def test_an_event_loop_written_in_c_is_seen_by_asyncio_run():
    stack = Stack((Frame(PYTHON + "asyncio/runners.py", 118, "Runner.run"),))
    assert stack.loop_idle and stack.runs_loop


def test_a_callback_that_selects_for_itself_is_no_idle_loop(made):
    """subprocess.run(capture_output=True) in a coroutine ends in select, too."""
    grades = [
        SELECTS[0],
        [PYTHON + "subprocess.py", 2115, "Popen._communicate"],
        ["/home/me/train.py", 4, "grade"],
        [PYTHON + "asyncio/events.py", 80, "Handle._run"],
        *LOOP,
    ]
    for number in range(3):
        step(made, number, 2 * number, 2 * number + 1)
        made.sample(2 * number, 2 * number + 1, main=SELECTS)
        made.sample(2 * number + 1, 2 * number + 2, main=grades)
    document = made.judged()
    assert causes(document) == ["event-loop-blocked"]
    assert document["findings"][0]["where"].endswith("train.py:4 in grade")


def test_no_work_means_no_span(made):
    made.request(0, "ServiceClient.create_lora_training_client", 0, 1)
    made.sample(0, 1)
    document = made.judged()
    assert document["active_seconds"] == 0
    assert "without training, sampling or saving" in document["verdict"]
    (made.folder / "x").mkdir()
    assert build(read_folder(made.folder, Outcome())[0], Outcome()).seconds == 0


def test_a_worker_ended_while_it_started_is_no_damage(made) -> None:
    made.sample(0, 1)
    made.judged()
    whole = len(read_folder(made.folder, Outcome()))
    (made.folder / "trace-99999.jsonl").write_text("")
    assert len(read_folder(made.folder, Outcome())) == whole
