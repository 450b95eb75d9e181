"""Environments and services that are wrong, produced, and what doctor.py says of them."""

from __future__ import annotations

import os
import subprocess
import sys

from fault_lab import Lab, Look, fault, healthy
from refusing_server import refusing_server

KEY = "tml-abcdefghijklmnop"


def environment(lab: Lab, **settings: str) -> dict[str, str]:
    """This one without any Tinker setting, but ``settings``."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TINKER_")}
    return {**kept, "HOME": str(lab.tmp_path), **settings}


def frozen(lab: Lab, *changed: str) -> Look:
    """A freeze of this very environment with some lines changed."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "freeze"], capture_output=True, text=True, check=True
    )
    names = tuple(line.split("==")[0] for line in changed)
    lines = [line for line in done.stdout.splitlines() if not line.lower().startswith(names)]
    return Look(["--freeze", lab.write("freeze.txt", "\n".join([*lines, *changed]))])


@fault("doctor.py", "pydantic-beta", produced="a freeze file with the slow pydantic pre-release")
def test_pydantic_beta(lab: Lab) -> Look:
    return frozen(lab, "pydantic==2.13.0b1")


@fault(
    "doctor.py", "transformers-deepseek-tokenizer", produced="a freeze file with transformers 5.3.0"
)
def test_transformers_with_wrong_tokenizer_class(lab: Lab) -> Look:
    return frozen(lab, "transformers==5.3.0")


@fault("doctor.py", "cookbook-downgraded", produced="a freeze in which pip chose an old cookbook")
def test_silent_downgrade(lab: Lab) -> Look:
    return frozen(lab, "tinker-cookbook==0.2.0", "tinker_cookbook==0.2.0")


@fault("doctor.py", "no-credential", produced="no key anywhere")
def test_no_credential(lab: Lab) -> Look:
    return Look([], env=environment(lab))


@fault("doctor.py", "api-key-malformed", produced="a key with a line end, as `echo` makes it")
def test_key_with_a_line_end(lab: Lab) -> Look:
    return Look(["--offline"], env=environment(lab, TINKER_API_KEY=f"{KEY}\n"))


@fault("doctor.py", "base-url", produced="an address that ends with /api/v1")
def test_address_with_a_path(lab: Lab) -> Look:
    settings = {"TINKER_API_KEY": KEY, "TINKER_BASE_URL": "https://example.com/api/v1"}
    return Look(["--offline"], env=environment(lab, **settings))


@fault("doctor.py", "service-unreachable", produced="nobody listens at the address")
def test_dead_address(lab: Lab) -> Look:
    settings = {"TINKER_API_KEY": KEY, "TINKER_BASE_URL": "http://127.0.0.1:9"}
    return Look([], env=environment(lab, **settings))


def refused(lab: Lab, status: int) -> Look:
    server = refusing_server(status)
    url = server.__enter__()
    lab.at_end.append(lambda: server.__exit__(None, None, None))
    return Look([], env=environment(lab, TINKER_API_KEY=KEY, TINKER_BASE_URL=url))


@fault("doctor.py", "key-refused", produced="a service that answers 401")
def test_refused_key(lab: Lab) -> Look:
    return refused(lab, 401)


@fault("doctor.py", "billing", produced="a service that answers 402")
def test_no_billing(lab: Lab) -> Look:
    return refused(lab, 402)


@fault("doctor.py", "model-not-served", produced="a model that the rehearsal does not serve")
def test_unknown_model(lab: Lab, rehearsal) -> Look:
    return Look(["--model", "Qwen/Qwen3-8B"], env=rehearsal.env)


@fault("doctor.py", "no-capacity", produced="--fault slow-create: a training client never comes")
def test_no_capacity(lab: Lab) -> Look:
    server = lab.start_rehearsal(faults=["slow-create:60s"])
    running = server.__enter__()
    lab.at_end.append(lambda: server.__exit__(None, None, None))
    return Look(["--model", running.model, "--create-timeout", "3"], env=running.env)


@healthy("doctor.py", produced="this environment against a rehearsal, a training client created")
def test_healthy_service(lab: Lab, rehearsal) -> Look:
    return Look(["--model", rehearsal.model], env=rehearsal.env)


@healthy("doctor.py", produced="the freeze of this environment")
def test_healthy_freeze(lab: Lab) -> Look:
    return frozen(lab)
