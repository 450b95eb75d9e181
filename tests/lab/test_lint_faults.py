"""Faults of training scripts: each script runs for real on a rehearsal, shows what goes wrong,
and is then read by check_pipelining.py."""

from __future__ import annotations

import os
import runpy
import warnings
from pathlib import Path
from typing import Any

import pytest
from fault_lab import Lab, Look, fault, healthy
from sdk_calls import unique

SCRIPT = "check_pipelining.py"

START = """
import asyncio
import os
import tinker
from sdk_calls import DATA, PROMPT
from tinker import types

svc = tinker.ServiceClient()
ADAM = types.AdamParams(learning_rate=1e-2)
PARAMS = types.SamplingParams(max_tokens=4, temperature=0.0)
"""
CREATE = """
tc = svc.create_lora_training_client(base_model=os.environ["LAB_MODEL"], rank=4).result()
"""


@pytest.fixture
def execute(rehearsal, monkeypatch: pytest.MonkeyPatch, lab: Lab):
    """Runs a script against the shared rehearsal: its globals, or its error."""
    import tinker

    monkeypatch.setenv("LAB_MODEL", rehearsal.model)
    monkeypatch.setenv("LAB_NAME", unique("lint"))
    monkeypatch.setenv("TINKER_BASE_URL", rehearsal.base_url)
    monkeypatch.setenv("TINKER_API_KEY", "tml-rehearsal")
    real = tinker.ServiceClient

    def client(**_: Any) -> tinker.ServiceClient:
        """The script's own client, closed with the rehearsal."""
        rehearsal.clients.append(real())
        return rehearsal.clients[-1]

    monkeypatch.setattr(tinker, "ServiceClient", client)

    def run(code: str, *, error: type[BaseException] | None = None) -> tuple[Path, Any]:
        path = lab.write("train.py", code)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            if error is None:
                return path, runpy.run_path(str(path))
            with pytest.raises(error) as caught:
                runpy.run_path(str(path))
        return path, caught.value

    return run


@fault(SCRIPT, "coroutine-result", produced="run: .result() of a coroutine raises AttributeError")
def test_coroutine_taken_for_a_future(lab: Lab, execute) -> Look:
    path, error = execute(
        START
        + CREATE
        + """
fb = tc.forward_backward_async(DATA, "cross_entropy")
try:
    print(fb.result())
finally:
    fb.close()
""",
        error=AttributeError,
    )
    assert "coroutine" in str(error)
    return Look([path])


@fault(SCRIPT, "coroutine-never-awaited", produced="run: the checkpoint is never saved")
def test_save_that_nobody_awaits(lab: Lab, execute, rehearsal) -> Look:
    with pytest.warns(RuntimeWarning, match="never awaited"):
        path, _ = execute(
            START
            + CREATE
            + """
async def main():
    tc.save_state_async(os.environ["LAB_NAME"])
asyncio.run(main())
"""
        )
    listed = rehearsal.rest().list_user_checkpoints(limit=100).result().checkpoints
    assert not any(os.environ["LAB_NAME"] in c.tinker_path for c in listed)
    return Look([path])


@fault(SCRIPT, "loss-attribute", produced="run: the result has no .loss")
def test_loss_read_as_an_attribute(lab: Lab, execute) -> Look:
    path, error = execute(
        START
        + CREATE
        + """
fb, opt = tc.forward_backward(DATA, "cross_entropy"), tc.optim_step(ADAM)
result = fb.result()
opt.result()
print("loss", result.loss)
""",
        error=AttributeError,
    )
    assert "loss" in str(error)
    return Look([path])


@fault(SCRIPT, "wait-before-submit", produced="run: the gradient is there before the next submit")
def test_waits_between_two_submits(lab: Lab, execute) -> Look:
    path, after = execute(
        START
        + CREATE
        + """
early = []
for _ in range(2):
    fb = tc.forward_backward(DATA, "cross_entropy")
    fb.result()
    early.append(fb.future().done())
    tc.optim_step(ADAM).result()
"""
    )
    assert after["early"] == [True, True]
    return Look([path])


@fault(SCRIPT, "sequential-samples", produced="run: never more than one sample under way")
def test_one_sample_at_a_time(lab: Lab, execute) -> Look:
    path, after = execute(
        START
        + """
sampler = svc.create_sampling_client(base_model=os.environ["LAB_MODEL"]).result()
under_way, most = [], 0

async def main():
    global most
    for _ in range(3):
        future = sampler.sample(PROMPT, 1, PARAMS)
        under_way.append(future)
        most = max(most, sum(not f.future().done() for f in under_way))
        await future
asyncio.run(main())
"""
    )
    assert after["most"] <= 1
    return Look([path])


@fault(SCRIPT, "stale-sampler", produced="run: its logprobs stay, a new client's change")
def test_sampler_older_than_the_weights(lab: Lab, execute) -> Look:
    path, after = execute(
        START
        + CREATE
        + """
sampler = tc.save_weights_and_get_sampling_client().result()
before = sampler.compute_logprobs(PROMPT).result()
for _ in range(2):
    sequence = sampler.sample(PROMPT, 1, PARAMS).result().sequences[0]
    fb, opt = tc.forward_backward(DATA, "cross_entropy"), tc.optim_step(ADAM)
    fb.result(), opt.result()
after = sampler.compute_logprobs(PROMPT).result()
new = tc.save_weights_and_get_sampling_client().result().compute_logprobs(PROMPT).result()
"""
    )
    assert after["after"] == after["before"] != after["new"]
    return Look([path])


@fault(SCRIPT, "forward-without-backward", produced="run: the weights do not change")
def test_forward_where_a_gradient_was_meant(lab: Lab, execute) -> Look:
    path, after = execute(
        START
        + CREATE
        + """
losses = []
for _ in range(3):
    f = tc.forward(DATA, "cross_entropy")
    o = tc.optim_step(ADAM)
    losses.append(f.result().metrics["loss:sum"])
    o.result()
"""
    )
    assert len(set(after["losses"])) == 1
    return Look([path])


@fault(SCRIPT, "tensor-in-loss-config", produced="run: the SDK cannot send a tensor there")
def test_advantages_in_the_loss_config(lab: Lab, execute) -> Look:
    path, _ = execute(
        START
        + CREATE
        + """
import torch
advantages = torch.ones(5)
fb = tc.forward_backward(DATA, "cross_entropy", loss_fn_config={"advantages": advantages})
fb.result()
""",
        error=ValueError,
    )
    return Look([path])


@fault(SCRIPT, "state-path-for-sampling", produced="run: the service refuses the path")
def test_training_state_given_to_a_sampler(lab: Lab, execute) -> Look:
    import tinker

    path, _ = execute(
        START
        + CREATE
        + """
saved = tc.save_state(os.environ["LAB_NAME"]).result()
sampler = svc.create_sampling_client(model_path=saved.path).result()
sampler.sample(PROMPT, 1, PARAMS).result()
""",
        error=tinker.BadRequestError,
    )
    return Look([path])


@fault(SCRIPT, "sampler-path-for-training", produced="run: the service refuses the path")
def test_sampler_weights_given_to_training(lab: Lab, execute) -> Look:
    import tinker

    path, _ = execute(
        START
        + CREATE
        + """
saved = tc.save_weights_for_sampler(os.environ["LAB_NAME"]).result()
svc.create_training_client_from_state(saved.path).result()
""",
        error=tinker.BadRequestError,
    )
    return Look([path])


@fault(SCRIPT, "short-ttl", produced="run: the service refuses a TTL of ten minutes")
def test_ttl_under_an_hour(lab: Lab, execute) -> Look:
    import tinker

    path, error = execute(
        START + CREATE + '\ntc.save_state(os.environ["LAB_NAME"], ttl_seconds=600).result()\n',
        error=tinker.BadRequestError,
    )
    assert "3600" in str(error)
    return Look([path])


@fault(SCRIPT, "name-on-ephemeral-sampler", produced="run: no checkpoint of that name is listed")
def test_name_of_a_sampler_that_is_not_kept(lab: Lab, execute, rehearsal) -> Look:
    with pytest.warns(DeprecationWarning, match="has no effect"):
        path, after = execute(
            START
            + CREATE
            + """
name = os.environ["LAB_NAME"]
sampler = tc.save_weights_and_get_sampling_client(name=name).result()
"""
        )
    listed = rehearsal.rest().list_user_checkpoints(limit=100).result().checkpoints
    assert not any(after["name"] in c.tinker_path for c in listed)
    return Look([path])


@fault(SCRIPT, "sampler-weights-download", produced="run: the cookbook's download fails")
def test_sampler_weights_downloaded(lab: Lab, execute) -> Look:
    from tinker_cookbook.exceptions import WeightsDownloadError

    path, _ = execute(
        START
        + CREATE
        + """
from tinker_cookbook import weights
path = tc.save_weights_for_sampler(os.environ["LAB_NAME"]).result().path
weights.download(tinker_path=path, output_dir="adapter-that-never-comes")
""",
        error=WeightsDownloadError,
    )
    return Look([path])


@fault(SCRIPT, "home-made-timeout", produced="run: the deadline cancels a sample under way")
def test_deadline_around_a_sample(lab: Lab, execute) -> Look:
    path, _ = execute(
        START
        + """
sampler = svc.create_sampling_client(base_model=os.environ["LAB_MODEL"]).result()

async def main():
    await asyncio.wait_for(sampler.sample(PROMPT, 1, PARAMS), timeout=0.0001)
asyncio.run(main())
""",
        error=TimeoutError,
    )
    return Look([path])


@fault(SCRIPT, "home-made-retry", produced="run: a step that did arrive is made twice")
def test_retry_around_a_step(lab: Lab, execute) -> Look:
    path, after = execute(
        START
        + CREATE
        + """
made = 0
for attempt in range(2):
    try:
        fb, opt = tc.forward_backward(DATA, "cross_entropy"), tc.optim_step(ADAM)
        fb.result(), opt.result()
        made += 1
        if attempt == 0:
            raise ConnectionError("the answer was lost")
        break
    except Exception:
        continue
"""
    )
    assert after["made"] == 2
    return Look([path])


@fault(SCRIPT, "weights-only-resume", produced="run: the resumed step differs from the next one")
def test_resumed_without_the_optimizer(lab: Lab, execute) -> Look:
    path, after = execute(
        START
        + CREATE
        + """
def step(client):
    fb, opt = client.forward_backward(DATA, "cross_entropy"), client.optim_step(ADAM)
    loss = fb.result().metrics["loss:sum"]
    opt.result()
    return loss

for _ in range(3):
    step(tc)
resume_path = tc.save_state(os.environ["LAB_NAME"]).result().path
resumed = svc.create_training_client_from_state(resume_path).result()
exact = svc.create_training_client_from_state_with_optimizer(resume_path).result()
step(tc), step(resumed), step(exact)
went_on, without, with_it = step(tc), step(resumed), step(exact)
"""
    )
    assert after["with_it"] == pytest.approx(after["went_on"], rel=1e-5)
    assert after["without"] != pytest.approx(after["went_on"], rel=1e-5)
    return Look([path])


@fault(SCRIPT, "off-policy-importance-sampling", produced="run: the ratio leaves 1 after a step")
def test_many_steps_on_the_same_samples(lab: Lab, execute) -> Look:
    path, after = execute(
        START
        + CREATE
        + """
import numpy as np
losses = []
for _ in range(1):
    sampler = tc.save_weights_and_get_sampling_client().result()
    sequence = sampler.sample(PROMPT, 1, PARAMS).result().sequences[0]
    tokens = PROMPT.to_ints() + list(sequence.tokens)
    n, start = len(tokens) - 1, len(PROMPT.to_ints()) - 1
    old = np.array([0.0] * start + list(sequence.logprobs), np.float32)
    advantages = np.array([0.0] * start + [1.0] * (n - start), np.float32)
    data = [types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "logprobs": old, "advantages": advantages},
    )]
    for epoch in range(3):
        fb, opt = tc.forward_backward(data, "importance_sampling"), tc.optim_step(ADAM)
        losses.append(fb.result().metrics["loss:sum"])
        opt.result()
"""
    )
    assert after["losses"][2] < after["losses"][1] < after["losses"][0]
    return Look([path])


@fault(SCRIPT, "missing-recipe-name", produced="run: the Config raises TypeError")
def test_config_without_a_recipe_name(lab: Lab, execute) -> Look:
    path, error = execute(
        'from tinker_cookbook.rl import train\ntrain.Config(log_path="x", max_tokens=8)\n',
        error=TypeError,
    )
    assert "recipe_name" in str(error)
    return Look([path])


@fault(SCRIPT, "parse-success-truthiness", produced="run: a cut reply gets the reward")
def test_ending_taken_as_a_boolean(lab: Lab, execute, rehearsal, monkeypatch) -> Look:
    monkeypatch.setenv("LAB_DIR", str(rehearsal.model_dir))
    path, after = execute(
        """
import os
from tinker_cookbook import renderers
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(os.environ["LAB_DIR"])
renderer = renderers.get_renderer("role_colon", tokenizer)
message, parse_success = renderer.parse_response(tokenizer.encode("cut in the mid"))
clean = parse_success.is_clean
reward = 1.0 if parse_success else -1.0
"""
    )
    assert after["reward"] == 1.0
    assert not after["clean"]
    return Look([path])


@fault(SCRIPT, "no-permanent-save", produced="run: trained, and no checkpoint is listed")
def test_trains_and_keeps_nothing(lab: Lab, execute, rehearsal) -> Look:
    path, after = execute(
        START
        + CREATE
        + """
for _ in range(2):
    fb, opt = tc.forward_backward(DATA, "cross_entropy"), tc.optim_step(ADAM)
    fb.result(), opt.result()
"""
    )
    listed = rehearsal.rest().list_checkpoints(after["tc"].model_id).result().checkpoints
    assert listed == []
    return Look([path])


@fault(SCRIPT, "client-future-unresolved", produced="run: the SDK warns at the first use")
def test_future_used_as_the_client(lab: Lab, execute) -> Look:
    import tinker

    path, after = execute(
        START
        + """
tc = svc.create_lora_training_client(base_model=os.environ["LAB_MODEL"], rank=4)
loss = tc.forward_backward(DATA, "cross_entropy").result().metrics["loss:sum"]
"""
    )
    assert isinstance(after["tc"], tinker.APIFuture)
    return Look([path])


@healthy(SCRIPT, produced="a pipelined supervised script, run")
def test_pipelined_script(lab: Lab, execute) -> Look:
    path, after = execute(
        START
        + CREATE
        + """
losses = []
for _ in range(3):
    fb = tc.forward_backward(DATA, "cross_entropy")
    opt = tc.optim_step(ADAM)
    losses.append(fb.result().metrics["loss:sum"])
    opt.result()
tc.save_state(os.environ["LAB_NAME"]).result()
"""
    )
    assert after["losses"][-1] < after["losses"][0]
    return Look([path])


@healthy(SCRIPT, produced="an asynchronous RL loop that renews its sampler, run")
def test_sampler_renewed_every_round(lab: Lab, execute) -> Look:
    path, _ = execute(
        START
        + """
async def main():
    tc = await svc.create_lora_training_client(base_model=os.environ["LAB_MODEL"], rank=4)
    for _ in range(2):
        sampler = await tc.save_weights_and_get_sampling_client()
        await asyncio.gather(*[sampler.sample(PROMPT, 2, PARAMS) for _ in range(2)])
        fb = tc.forward_backward(DATA, "cross_entropy")
        opt = tc.optim_step(ADAM)
        await fb
        await opt
    await tc.save_weights_for_sampler(os.environ["LAB_NAME"])

asyncio.run(main())
"""
    )
    return Look([path])


@healthy(SCRIPT, produced="a resume with the optimizer, run")
def test_resumed_with_the_optimizer(lab: Lab, execute) -> Look:
    path, _ = execute(
        START
        + CREATE
        + """
resume_path = tc.save_state(os.environ["LAB_NAME"]).result().path
tc = svc.create_training_client_from_state_with_optimizer(resume_path).result()
for _ in range(2):
    fb, opt = tc.forward_backward(DATA, "cross_entropy"), tc.optim_step(ADAM)
    fb.result(), opt.result()
tc.save_state(os.environ["LAB_NAME"] + "-end").result()
"""
    )
    return Look([path])


@healthy(SCRIPT, produced="a wait on purpose: the step is skipped when the loss is not finite, run")
def test_guard_before_the_step(lab: Lab, execute) -> Look:
    path, _ = execute(
        START
        + CREATE
        + """
import math
for _ in range(2):
    result = tc.forward_backward(DATA, "cross_entropy").result()
    if not math.isfinite(result.metrics["loss:sum"]):
        raise SystemExit("not finite")
    tc.optim_step(ADAM).result()
tc.save_state(os.environ["LAB_NAME"]).result()
"""
    )
    return Look([path])


@healthy(SCRIPT, produced="the recipes that tinker-cookbook ships")
def test_recipes_of_the_cookbook(lab: Lab) -> Look:
    import tinker_cookbook

    return Look([Path(tinker_cookbook.__file__).parent / "recipes"])


@healthy(SCRIPT, produced="this project's own trainers")
def test_own_trainers(lab: Lab) -> Look:
    scripts = Path(__file__).resolve().parents[2] / "scripts"
    return Look([scripts / "sl_trainer.py", scripts / "tinkerlab" / "training"])
