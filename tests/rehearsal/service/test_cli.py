"""rehearse.py as a user runs it, and tinker's own CLI against it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
REHEARSE = [sys.executable, str(ROOT / "scripts" / "rehearse.py")]
TINKER = Path(sys.executable).with_name("tinker")


def rehearse(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*REHEARSE, *arguments], capture_output=True, text=True, timeout=300, check=False, **options
    )


def run_child(tmp_path: Path, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    store = str(tmp_path / "store")
    return rehearse(
        "run", "--model", "tiny:llama", "--store", store, *options, "--", sys.executable, "-c", code
    )


@pytest.mark.slow
def test_run_passes_output_environment_and_exit_code_on(tmp_path: Path) -> None:
    code = (
        "import os, sys, tinker\n"
        "print(tinker.RestClient().get_server_capabilities().result().supported_models[0].model_name)\n"
        "print(os.environ['TINKER_API_KEY'])\n"
        "sys.exit(7)"
    )
    done = run_child(tmp_path, code)
    assert done.returncode == 7, done.stderr
    assert done.stdout.splitlines() == ["tiny:llama", "tml-rehearsal"]
    assert "TINKER_BASE_URL" not in os.environ


@pytest.mark.slow
def test_run_stops_its_server(tmp_path: Path) -> None:
    done = run_child(tmp_path, "import os; print(os.environ['TINKER_BASE_URL'])")
    import httpx

    with pytest.raises(httpx.ConnectError):
        httpx.get(done.stdout.strip())


@pytest.mark.slow
def test_an_alias_answers_with_the_small_model_and_its_tokenizer(tmp_path: Path) -> None:
    code = (
        "import tinker\n"
        "from tinker_cookbook.tokenizer_utils import get_tokenizer\n"
        "client = tinker.ServiceClient().create_lora_training_client('Qwen/Qwen3-8B', rank=2).result()\n"
        "print(client.get_info().model_name)\n"
        "print(client.get_tokenizer().decode([72, 105]))\n"
        "print(len(get_tokenizer('Qwen/Qwen3-8B')))"
    )
    done = run_child(tmp_path, code, "--alias", "Qwen/Qwen3-8B=tiny:qwen3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "Qwen/Qwen3-8B"
    assert int(done.stdout.splitlines()[2]) < 1000


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_run_passes_signals_on_once(tmp_path: Path, number: signal.Signals) -> None:
    child = (
        "import signal, sys, time\n"
        "got = []\n"
        f"signal.signal({int(number)}, lambda n, f: got.append(n))\n"
        "print('ready', flush=True)\n"
        "while not got: time.sleep(0.01)\n"
        "time.sleep(0.3)\n"
        "print(len(got)); sys.exit(5)"
    )
    command = ["run", "--model", "tiny:llama", "--store", str(tmp_path / "s"), "--"]
    process = subprocess.Popen(
        [*REHEARSE, *command, sys.executable, "-c", child],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, number)  # as a terminal's Ctrl-C does, to the whole group
    rest, _ = process.communicate(timeout=60)
    assert rest == "1\n"
    assert process.returncode == 5


@pytest.mark.slow
def test_a_killed_run_takes_its_server_along(tmp_path: Path) -> None:
    import httpx

    command = ["run", "--model", "tiny:llama", "--store", str(tmp_path / "s"), "--"]
    child = "import os, time; print(os.environ['TINKER_BASE_URL'], os.getpid(), flush=True); time.sleep(60)"
    process = subprocess.Popen(
        [*REHEARSE, *command, sys.executable, "-c", child], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    url, child_pid = process.stdout.readline().split()
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            httpx.get(url)
        except httpx.TransportError:
            break
        time.sleep(0.1)
    else:
        pytest.fail("the server outlived the run that started it")
    os.kill(int(child_pid), signal.SIGKILL)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run"], "nothing to run"),
        (["run", "--", "/no/such/program"], "can't run /no/such/program"),
        (["serve", "--model", "/no/such/dir"], "/no/such/dir"),
        (["serve", "--model", "tiny:nonsense"], "nonsense"),
        (["serve", "--fault", "gremlins"], "gremlins"),
        (["serve", "--alias", "x"], "--alias"),
        (["serve", "--port", "99999999", "--model", "tiny:llama"], "--port"),
        (["serve", "--client-flag", "nope=1"], "nope"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(
    arguments: list[str], complaint: str, tmp_path: Path
) -> None:
    if arguments == ["run", "--", "/no/such/program"]:
        arguments = ["run", "--model", "tiny:llama", *arguments[1:]]
    arguments = [arguments[0], "--store", str(tmp_path / "store"), *arguments[1:]]
    done = rehearse(*arguments)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_models_and_faults_are_listed(tmp_path: Path) -> None:
    names = [row["name"] for row in json.loads(rehearse("models", "--json").stdout)]
    assert "HuggingFaceTB/SmolLM2-135M-Instruct" in names
    assert {"tiny:llama", "tiny:qwen3", "tiny:qwen3_moe", "tiny:gpt_oss"} <= set(names)
    kinds = [row["kind"] for row in json.loads(rehearse("faults", "--json").stdout)]
    assert {"latency", "429", "500", "504", "drop", "capacity", "corrupt"} <= set(kinds)
    assert "latency" in rehearse("faults").stdout


def tinker_cli(rehearsal, *arguments: str, **options) -> str:
    done = subprocess.run(
        [str(TINKER), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=rehearsal.env,
        **options,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_tinkers_own_cli(rehearsal, tmp_path: Path) -> None:
    service = rehearsal.client()
    client = service.create_lora_training_client(rehearsal.model, rank=2).result()
    path = client.save_state("from-cli").result().path
    run_id = client.model_id
    as_json = lambda *arguments: json.loads(tinker_cli(rehearsal, "--format", "json", *arguments))  # noqa: E731
    assert run_id in json.dumps(as_json("run", "list", "--limit", "0"))
    assert run_id in json.dumps(as_json("run", "info", run_id))
    listed = as_json("checkpoint", "list", "--run-id", run_id)
    assert [row["tinker_path"] for row in listed["checkpoints"]] == [path]
    assert path in json.dumps(as_json("checkpoint", "info", path))
    assert rehearsal.model in tinker_cli(rehearsal, "model", "list")
    assert "tml:user:rehearsal" in tinker_cli(rehearsal, "auth", "whoami")
    tinker_cli(rehearsal, "checkpoint", "publish", path)
    tinker_cli(rehearsal, "checkpoint", "unpublish", path)
    tinker_cli(rehearsal, "checkpoint", "set-ttl", path, "--ttl", "3600")
    tinker_cli(rehearsal, "checkpoint", "download", path, "-o", str(tmp_path))
    assert list(tmp_path.rglob("adapter_model.safetensors"))
    tinker_cli(rehearsal, "checkpoint", "delete", path, "-y")
    assert as_json("checkpoint", "list", "--run-id", run_id)["checkpoints"] == []
