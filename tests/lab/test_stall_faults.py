"""Runs that stand still for a reason, each made for real.

A script is run under ``task_dump.py run`` against a rehearsal, and the trace that it leaves is
what ``task_dump.py report`` must judge.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from fault_lab import SCRIPTS, Look, fault, healthy

import task_dump

PRELUDE = """
import asyncio, ctypes, sys, time
if "--torch" not in sys.argv:
    sys.modules["torch"] = None  # the SDK does without, and starts in half the time
import numpy as np
import tinker
from tinker import types

def datum(tokens):
    inputs = {"target_tokens": tokens[1:], "weights": np.ones(len(tokens) - 1, np.float32)}
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)

DATA = [datum([10, 20, 30, 40, 50, 60]), datum([7, 8, 9])]
ADAM = types.AdamParams(learning_rate=1e-3)
PROMPT = tinker.ModelInput.from_ints([72, 101, 108])
SHORT = types.SamplingParams(max_tokens=4)

def submit():
    return tc.forward_backward(DATA, "cross_entropy"), tc.optim_step(ADAM)

service = tinker.ServiceClient()
tc = service.create_lora_training_client("tiny:llama", rank=4).result()
"""


def watch(lab, server, code: str, *arguments: str) -> Look:
    """Run ``PRELUDE + code`` under the watchdog, against ``server``."""
    for name, value in server.env.items():
        lab.monkeypatch.setenv(name, value)
    script = lab.write("train.py", PRELUDE + code)
    run = ["run", "--trace", str(lab.tmp_path / "trace"), "--", "python", str(script), *arguments]
    task_dump.main(run)
    return Look(["report", lab.tmp_path / "trace"])


@fault("task_dump.py", "client-stall", produced="time.sleep between the steps")
def test_sleep_between_steps(lab, rehearsal) -> Look:
    return watch(
        lab,
        rehearsal,
        """
for _ in range(4):
    f, o = submit()
    f.result(), o.result()
    time.sleep(0.5)
""",
    )


@fault("task_dump.py", "client-stall", produced="a second of pure Python between the steps")
def test_heavy_python_between_steps(lab, rehearsal) -> Look:
    return watch(
        lab,
        rehearsal,
        """
def features(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(i * i for i in range(1000))

for _ in range(3):
    f, o = submit()
    f.result(), o.result()
    features(0.8)
""",
    )


@fault("task_dump.py", "client-stall", produced="a custom loss that computes for half a second")
def test_slow_custom_loss(lab, rehearsal) -> Look:
    return watch(
        lab,
        rehearsal,
        """
def loss(data, logprobs):
    until = time.monotonic() + 0.6
    while time.monotonic() < until:
        sum(i * i for i in range(1000))
    return sum(-row.sum() for row in logprobs), {}

plain = [tinker.Datum(model_input=d.model_input,
                      loss_fn_inputs={"target_tokens": d.loss_fn_inputs["target_tokens"]})
         for d in DATA]
for _ in range(3):
    f, o = tc.forward_backward_custom(plain, loss), tc.optim_step(ADAM)
    f.result(), o.result()
""",
        "--torch",
    )


@fault("task_dump.py", "event-loop-blocked", produced="time.sleep in an async grader")
def test_blocking_call_in_async_code(lab, rehearsal) -> Look:
    return watch(
        lab,
        rehearsal,
        """
async def grade():
    time.sleep(0.6)

async def main():
    for _ in range(3):
        f, o = submit()
        await f
        await o
        await grade()

asyncio.run(main())
""",
    )


@fault("task_dump.py", "result-in-async", produced=".result() in twelve gathered coroutines")
def test_result_in_async_code(lab, rehearsal) -> Look:
    return watch(
        lab,
        rehearsal,
        """
sampler = tc.save_weights_and_get_sampling_client().result()

async def one():
    return sampler.sample(PROMPT, 1, types.SamplingParams(max_tokens=120)).result()

async def main():
    await asyncio.sleep(0.3)
    await asyncio.gather(*[one() for _ in range(12)])

asyncio.run(main())
""",
    )


@fault("task_dump.py", "idle-gaps", produced="asyncio.sleep between the steps, nothing in flight")
def test_awaits_something_else(lab, rehearsal) -> Look:
    return watch(
        lab,
        rehearsal,
        """
async def fetch():
    await asyncio.sleep(0.6)

async def main():
    for _ in range(3):
        f, o = submit()
        await f
        await o
        await fetch()
    f, o = submit()
    await o

asyncio.run(main())
""",
    )


@fault("task_dump.py", "sdk-loop-blocked", produced="a done callback that sleeps on the SDK's loop")
def test_callback_on_the_sdks_loop(lab, rehearsal) -> Look:
    return watch(
        lab,
        rehearsal,
        """
def log_it(future):
    time.sleep(0.6)

for _ in range(4):
    f, o = submit()
    f.future().add_done_callback(log_it)
    f.result(), o.result()
""",
    )


@fault("task_dump.py", "sdk-loop-blocked", produced="a computing coroutine on the SDK's loop")
def test_coroutine_on_the_sdks_loop(lab, rehearsal) -> Look:
    return watch(
        lab,
        rehearsal,
        """
async def score():
    until = time.monotonic() + 0.6
    while time.monotonic() < until:
        sum(i * i for i in range(1000))

for _ in range(3):
    f, o = submit()
    tc.holder.run_coroutine_threadsafe(score())
    f.result(), o.result()
""",
    )


@fault("task_dump.py", "gil-held", produced="a C call that keeps the GIL (ctypes.PyDLL)")
def test_c_call_keeps_the_gil(lab, rehearsal) -> Look:
    return watch(
        lab,
        rehearsal,
        """
def native():
    ctypes.PyDLL(None).usleep(700_000)

for _ in range(3):
    f, o = submit()
    native()
    f.result(), o.result()
""",
    )


@fault("task_dump.py", "gil-held", produced="a regular expression that backtracks for seconds")
def test_regular_expression_keeps_the_gil(lab, rehearsal) -> Look:
    return watch(
        lab,
        rehearsal,
        """
import re

for _ in range(2):
    f, o = submit()
    f.result(), o.result()
    re.match(r"(a+)+$", "a" * 25 + "b")
f, o = submit()
o.result()
""",
    )


@fault("task_dump.py", "gil-held", produced="killed while C code kept the GIL for ever")
def test_killed_while_the_gil_is_held(lab, rehearsal) -> Look:
    code = 'f, o = submit()\nprint("holding", flush=True)\nctypes.PyDLL(None).usleep(60_000_000)\n'
    script = lab.write("train.py", PRELUDE + code)
    trace = lab.tmp_path / "trace"
    run = [sys.executable, str(SCRIPTS / "task_dump.py"), "run", "--trace", str(trace), "--"]
    child = subprocess.Popen(
        [*run, "python", str(script)], env=rehearsal.env, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    with child.stdout:
        while "holding" not in child.stdout.readline():
            assert child.poll() is None
        time.sleep(2)
        # Python cannot react to a signal while C code runs: the second one kills.
        child.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        child.send_signal(signal.SIGTERM)
        child.stdout.read()
    child.wait(30)
    return Look(["report", trace])


@fault("task_dump.py", "waits-between-submissions", produced=".result() before the optimizer step")
def test_waits_before_the_optimizer_step(lab, rehearsal) -> Look:
    return watch(
        lab,
        rehearsal,
        """
for _ in range(5):
    tc.forward_backward(DATA, "cross_entropy").result()
    tc.optim_step(ADAM).result()
""",
    )


@fault("task_dump.py", "samples-one-at-a-time", produced="ten samples, each awaited in a loop")
def test_samples_one_at_a_time(lab, rehearsal) -> Look:
    return watch(
        lab,
        rehearsal,
        """
sampler = tc.save_weights_and_get_sampling_client().result()

async def main():
    for _ in range(10):
        await sampler.sample(PROMPT, 1, SHORT)

asyncio.run(main())
""",
    )


STEPS = """
for _ in range(3):
    f, o = submit()
    f.result(), o.result()
"""


@fault("task_dump.py", "capacity-paused", produced="rehearsal --fault capacity:3s")
def test_service_short_on_capacity(lab) -> Look:
    with lab.start_rehearsal(faults=["capacity:3s"]) as server:
        return watch(lab, server, STEPS.replace("3", "1"))


@fault("task_dump.py", "slow-round-trip", produced="rehearsal --fault latency:600ms")
def test_distant_service(lab) -> Look:
    with lab.start_rehearsal(faults=["latency:600ms"]) as server:
        return watch(lab, server, STEPS.replace("3", "1"))


@fault("task_dump.py", "service-errors", produced="rehearsal --fault 500:3x")
def test_failing_service(lab) -> Look:
    with lab.start_rehearsal(faults=["500:3x"]) as server:
        return watch(lab, server, STEPS.replace("3", "1"))


@fault("task_dump.py", "slow-create", produced="--fault slow-create:60s, stopped with Ctrl-C")
def test_create_never_answers(lab) -> Look:
    trace = lab.tmp_path / "trace"
    script = lab.write("train.py", PRELUDE)
    run = [sys.executable, str(SCRIPTS / "task_dump.py"), "run", "--trace", str(trace), "--"]
    with lab.start_rehearsal(faults=["slow-create:60s"]) as server:
        child = subprocess.Popen(
            [*run, "python", str(script)],
            env=server.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        wait_for(trace, '"/api/v1/create_session"')
        time.sleep(6)
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=60)
    assert child.returncode == 1
    return Look(["report", trace])


def wait_for(folder: Path, text: str, seconds: float = 60) -> None:
    """Until a trace in ``folder`` holds ``text``."""
    until = time.monotonic() + seconds
    while not any(text in trace.read_text() for trace in folder.glob("trace-*.jsonl")):
        assert time.monotonic() < until, f"{text} never came"
        time.sleep(0.1)


@healthy("task_dump.py", produced="steps submitted ahead, then samples gathered")
def test_pipelined_run(lab, rehearsal) -> Look:
    return watch(
        lab,
        rehearsal,
        """
def prepare():
    time.sleep(0.02)

before = None
for _ in range(20):
    now = submit()
    prepare()
    if before:
        for future in before:
            future.result()
    before = now
for future in before:
    future.result()
sampler = tc.save_weights_and_get_sampling_client().result()

async def main():
    await asyncio.gather(*[sampler.sample(PROMPT, 1, SHORT) for _ in range(16)])

asyncio.run(main())
""",
    )


@healthy("task_dump.py", produced="ten turns of one conversation, which must wait for each other")
def test_turns_of_one_conversation(lab, rehearsal) -> Look:
    return watch(
        lab,
        rehearsal,
        """
sampler = tc.save_weights_and_get_sampling_client().result()
ids = [72, 101]
for _ in range(10):
    reply = sampler.sample(tinker.ModelInput.from_ints(ids), 1, SHORT).result()
    ids = ids + list(reply.sequences[0].tokens) + [7]
""",
    )


@healthy("task_dump.py", produced="two steps and the end")
def test_short_run(lab, rehearsal) -> Look:
    return watch(lab, rehearsal, STEPS.replace("3", "2"))


@healthy(
    "task_dump.py", produced="a slow start before the first request, a slow end after the last"
)
def test_slow_start_and_end(lab, rehearsal) -> Look:
    code = "time.sleep(1.5)\n" + STEPS + "time.sleep(1.5)\n"
    return watch(lab, rehearsal, code)


@healthy("task_dump.py", produced="a script that never imports tinker")
def test_script_without_tinker(lab) -> Look:
    script = lab.write("train.py", "import time\ntime.sleep(1.2)\n")
    task_dump.main(["run", "--trace", str(lab.tmp_path / "trace"), "--", str(script)])
    return Look(["report", lab.tmp_path / "trace"])
