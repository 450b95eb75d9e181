"""Errors raised for real, by the SDK, the cookbook and a rehearsal, and read back from the log."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fault_lab import Lab, Look, fault, healthy
from repository import ROOT

SDK = """\
import tinker
client = tinker.ServiceClient().create_lora_training_client("tiny:llama", rank=4).result()
datum = tinker.Datum(
    model_input=tinker.ModelInput.from_ints([1, 2, 3]),
    loss_fn_inputs={"target_tokens": [2, 3, 4], "weights": [1.0, 1.0, 1.0]},
)
"""

CONNECT = """\
import tinker
service = tinker.ServiceClient(base_url="http://127.0.0.1:9")
service.create_lora_training_client("tiny:llama").result()
"""


def log_of(lab: Lab, code: str, env: dict[str, str], fails: bool = True) -> Look:
    """Run ``code`` and hand its output, as a user's log, to the script."""
    script = lab.write("train.py", code)
    done = subprocess.run(
        [sys.executable, str(script)],
        env=env,
        cwd=lab.tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert (done.returncode != 0) is fails, done.stderr
    return Look([lab.write("train.log", done.stdout + done.stderr)])


def without_credentials() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("TINKER_")}


@fault("explain_error.py", "no-api-key", produced="a client without any credential")
def test_no_key(lab: Lab) -> Look:
    env = without_credentials() | {"HOME": str(lab.tmp_path)}
    return log_of(lab, CONNECT, env)


@fault("explain_error.py", "api-key-malformed", produced="a key of another service")
def test_key_of_another_service(lab: Lab) -> Look:
    env = without_credentials() | {"TINKER_API_KEY": "sk-abcdefghijkl"}
    return log_of(lab, CONNECT, env)


@fault("explain_error.py", "connection-failed", produced="nobody listens at the address")
def test_dead_address(lab: Lab) -> Look:
    code = "import httpx\nhttpx.get('http://127.0.0.1:9/api/v1/healthz')"
    return log_of(lab, code, dict(os.environ))


@fault(
    "explain_error.py", "coroutine-result", produced=".result() of an *_async method's coroutine"
)
def test_result_of_a_coroutine(lab: Lab, rehearsal) -> Look:
    code = SDK + 'client.forward_backward_async([datum], "cross_entropy").result()'
    return log_of(lab, code, rehearsal.env)


@fault("explain_error.py", "loss-attribute", produced=".loss of a forward_backward result")
def test_loss_attribute(lab: Lab, rehearsal) -> Look:
    code = SDK + 'print(client.forward_backward([datum], "cross_entropy").result().loss)'
    return log_of(lab, code, rehearsal.env)


@fault(
    "explain_error.py", "poisoned-client", produced="a custom loss that raises, then another step"
)
def test_poisoned_client(lab: Lab, rehearsal) -> Look:
    code = f"""{SDK}
import time
def loss(data, logprobs):
    raise KeyError("reward")
try:
    client.forward_backward_custom([datum], loss).result()
except Exception as error:
    print("going on after", repr(error))
client.forward_backward([datum], "cross_entropy").result()
"""
    return log_of(lab, code, rehearsal.env)


@fault(
    "explain_error.py", "sampler-weights-download", produced="weights.download of a sampler path"
)
def test_download_of_sampler_weights(lab: Lab, rehearsal) -> Look:
    code = f"""{SDK}
from tinker_cookbook import weights
path = client.save_weights_for_sampler("lab-sampler").result().path
weights.download(tinker_path=path, output_dir="out")
"""
    return log_of(lab, code, rehearsal.env)


@fault("explain_error.py", "context-length", produced="max_tokens beyond the model's context")
def test_prompt_too_long(lab: Lab, rehearsal) -> Look:
    code = f"""{SDK}
sampler = client.save_weights_and_get_sampling_client().result()
params = tinker.SamplingParams(max_tokens=1_000_000)
sampler.sample(tinker.ModelInput.from_ints([1, 2]), 1, params).result()
"""
    return log_of(lab, code, rehearsal.env)


@fault("explain_error.py", "checkpoint-kind", produced="sampling from a weights/ path")
def test_sampling_from_a_training_path(lab: Lab, rehearsal) -> Look:
    code = f"""{SDK}
path = client.save_state("lab-state").result().path
tinker.ServiceClient().create_sampling_client(model_path=path).result()
"""
    return log_of(lab, code, rehearsal.env)


@fault("explain_error.py", "session-gone", produced="--fault session-expiry in the middle of a run")
@pytest.mark.slow
def test_session_expires(lab: Lab) -> Look:
    code = f"""{SDK}
import time
for _ in range(100):
    time.sleep(0.2)
    client.forward_backward([datum], "cross_entropy").result()
"""
    done = lab.rehearse(code, faults=["session-expiry:3s"])
    assert done.returncode != 0
    return Look([lab.write("train.log", done.stdout + done.stderr)])


@fault("explain_error.py", "recipe-name-missing", produced="a cookbook Config without recipe_name")
def test_config_without_recipe_name(lab: Lab) -> Look:
    code = 'from tinker_cookbook.rl.train import Config\nConfig(model_name="a/b", log_path="x")'
    return log_of(lab, code, dict(os.environ))


@fault("explain_error.py", "unknown-renderer", produced="a renderer name that does not exist")
def test_unknown_renderer(lab: Lab) -> Look:
    code = "from tinker_cookbook.renderers import get_renderer\nget_renderer('qwen9', None)"
    return log_of(lab, code, dict(os.environ))


@fault("explain_error.py", "no-lr-formula", produced="get_lr for a family without a formula")
def test_no_formula(lab: Lab) -> Look:
    code = "from tinker_cookbook.hyperparam_utils import get_lr\nget_lr('openai/gpt-oss-20b')"
    return log_of(lab, code, dict(os.environ))


@fault(
    "explain_error.py", "hub-unreachable", produced="a tokenizer that is not in the cache, offline"
)
def test_tokenizer_not_cached(lab: Lab) -> Look:
    code = (
        "from transformers import AutoTokenizer\n"
        "AutoTokenizer.from_pretrained('some-org/some-model-that-nobody-cached')"
    )
    env = dict(os.environ) | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(lab.tmp_path)}
    return log_of(lab, code, env)


@fault(
    "explain_error.py", "sdk-loop-blocked", produced="heartbeats of a log that stop before the hang"
)
def test_heartbeats_stop_first(lab: Lab) -> Look:
    """The SDK warns after two minutes of failed heartbeats: its own text, with the times moved."""
    import inspect

    from tinker.lib.internal_client_holder import InternalClientHolder

    assert "Session heartbeat failed for" in inspect.getsource(
        InternalClientHolder._session_heartbeat
    )
    log = """\
2026-02-03 11:00:02 INFO rollout 7: sampling
2026-02-03 11:00:04 INFO rollout 7: reply of 80 tokens
2026-02-03 11:00:04 INFO rollout 8: sampling
2026-02-03 11:10:04 ERROR rollout 8: timed out waiting for 600 s
2026-02-03 11:10:05 WARNING Session heartbeat failed for 541.0 seconds for session s. Last exception: None.
"""
    return Look(["-"], stdin=log)


@healthy("explain_error.py", produced="the log of a whole run of sl_trainer.py")
def test_log_of_a_good_run(lab: Lab, rehearsal) -> Look:
    row = '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes %d."}]}\n'
    lab.write("chats.jsonl", "".join(row % i for i in range(24)))
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "scripts/sl_trainer.py"),
            "base_model=tiny:llama",
            "train_file=chats.jsonl",
            "num_steps=3",
            "learning_rate=1e-3",
        ],
        env=rehearsal.env,
        cwd=lab.tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return Look([lab.write("train.log", done.stdout + done.stderr)])


@healthy("explain_error.py", produced="every message of the SDK and httpx during two good steps")
def test_log_of_the_sdk_at_debug_level(lab: Lab, rehearsal) -> Look:
    code = f"""
import logging
logging.basicConfig(level=logging.DEBUG, format="%(asctime)s %(levelname)s %(name)s %(message)s")
{SDK}
for _ in range(2):
    step = client.forward_backward([datum], "cross_entropy")
    update = client.optim_step(tinker.AdamParams(learning_rate=1e-3))
    print(step.result().metrics, update.result())
"""
    return log_of(lab, code, rehearsal.env, fails=False)


@healthy("explain_error.py", produced="model output that speaks of errors, without one")
def test_samples_that_speak_of_errors(lab: Lab) -> Look:
    text = (
        Path(ROOT / "README.md").read_text() + Path(ROOT / "skills/research/SKILL.md").read_text()
    )
    log = [
        f"2026-01-01 10:00:{i % 60:02d} INFO sample: {line}"
        for i, line in enumerate(text.split("\n"))
    ]
    return Look([lab.write("train.log", "\n".join(log))])
