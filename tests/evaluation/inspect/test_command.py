"""run_inspect_evals as a command: what it says without a key, without a service, without Inspect."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tinkerlab.errors import InputError

SCRIPTS = Path(__file__).parents[3] / "scripts"
DEAD = "http://127.0.0.1:9"


def run(*arguments) -> int:
    import run_inspect_evals as script

    return script.main([*map(str, arguments)])


def started(*arguments, code=0, **environment) -> subprocess.CompletedProcess:
    env = {name: value for name, value in os.environ.items() if not name.startswith("TINKER")}
    done = subprocess.run(
        [*map(str, arguments)],
        env={**env, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


SHELL = SCRIPTS / "run_inspect_evals.sh"


def test_a_dry_run_needs_neither_key_nor_service(tmp_path):
    done = started(
        SHELL, "--model", "Qwen/Qwen3-8B", "--suite", "code", "--task", "ifeval", "--limit", 100,
        "--dry-run", "--json", TINKER_BASE_URL=DEAD, PYTHON=sys.executable,
        PATH="/bin:/usr/bin",
    )  # fmt: skip
    plan = json.loads(done.stdout)
    assert plan["models"] == {"base": "Qwen/Qwen3-8B"}
    rows = {row["task"].partition("/")[2]: row for row in plan["tasks"]}
    assert list(rows) == ["humaneval", "mbpp", "bigcodebench", "ifeval"]
    assert rows["mbpp"]["samples"] == 100 * 5
    needs = {need["what"]: need["here"] for need in rows["humaneval"]["needs"]}
    assert isinstance(needs["docker, to run code that the model wrote"], bool)
    assert needs["download of openai/openai_humaneval from the Hugging Face Hub"] is None
    # By hand: 100 prompts of 170 tokens, replies of 300 to 2048, at the table's prices.
    import yaml

    table = yaml.safe_load((SCRIPTS.parent / "templates" / "prices.yaml").read_text())
    price = table["models"]["Qwen/Qwen3-8B"]
    low, high = (
        100 * (170 * price["prefill"] + reply * price["sample"]) / 1e6 for reply in (300, 2048)
    )
    (line,) = rows["humaneval"]["price"]
    assert f"${low:,.2f}" in line and f"${high:,.2f}" in line and str(price["read"]) in line


def test_a_dry_run_of_two_models_with_a_judge(trained_run, capsys):
    options = ("--suite", "safety", "--limit", 10, "--judge-model", "Qwen/Qwen3-8B", "--dry-run")
    assert run("--run", trained_run.folder, *options) == 0
    out = capsys.readouterr().out
    assert f"trained: {trained_run.sampler_path}" in out
    assert "needs judge model (here)" in out and "judge: about $" in out
    assert "price unknown: templates/prices.yaml has none for tiny:llama" in out


def test_the_list_needs_nothing(tmp_path):
    listed = json.loads(started(SHELL, "--list", "--json", PYTHON=sys.executable).stdout)
    assert {"chat", "code", "tools", "safety"} <= {suite["suite"] for suite in listed}
    text = started(SHELL, "--list", PYTHON=sys.executable).stdout
    assert "inspect_evals/ifeval (541 samples)" in text
    assert "needs hub: openai/openai_humaneval, docker" in text


def test_the_shell_script():
    assert "examples:" in started(SHELL, "--help").stdout
    assert "no Python 3.11" in started(SHELL, "--help", code=2, PYTHON="/none").stderr
    done = started(SHELL, "--model", "x", "--suite", "chat", code=2, PYTHON=sys.executable)
    assert done.stderr.startswith("error: say with --output") and done.stderr.count("\n") == 1


def test_the_list_of_a_suite_with_a_task_that_nobody_counted(tmp_path, capsys):
    file = tmp_path / "suites.yaml"
    file.write_text("suites: {mine: [aime2025]}\ntasks: {aime2025: {about: contest}}\n")
    assert run("--list", "--suites", file) == 0
    assert "inspect_evals/aime2025 (size unknown): contest" in capsys.readouterr().out


@pytest.mark.parametrize("package", ["inspect_ai", "inspect_evals"])
def test_without_inspect(package, tmp_path):
    """The package hidden from a new interpreter, as where nobody installed it."""
    code = (
        f"import sys; sys.modules[{package!r}] = None; sys.path.insert(0, {str(SCRIPTS)!r})\n"
        "import run_inspect_evals as script; from tinkerlab import cli\n"
        f"sys.argv = ['x', '--model', 'm', '--task', 'gsm8k', '--output', {str(tmp_path / 'o')!r}]\n"
        "cli.run(script.main)\n"
    )
    done = started(sys.executable, "-c", code, code=2)
    name = package.replace("_", "-")
    assert f"python -m pip install {name}==" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments, phrase",
    [
        (["--task", "FILE@sums", "--output", "OUT"], "name what is measured"),
        (["--model", "MODEL", "--output", "OUT"], "--suite NAME, --task NAME"),
        (["--model", "MODEL", "--task", "FILE@sums"], "--output DIR"),
        (["--model", "MODEL", "--suite", "chet", "--output", "OUT"], "did you mean chat"),
        (["--model", "MODEL", "--task", "gsm8j", "--output", "OUT"], "did you mean gsm8k"),
        (["--model", "MODEL", "--task", "FILE@sumz", "--output", "OUT"], "no such @task"),
        (["--model", "MODEL", "--task", "FILE@sums", "--limit", "0", "--output", "OUT"], "--limit"),
        (["--model", "MODEL", "--task", "FILE@sums", "--temperature", "nan", "--output", "OUT"],
         "finite"),
        (["--model", "MODEL", "--task", "FILE@sums", "-T", "x", "--output", "OUT"], "NAME=VALUE"),
        (["--model", "MODEL", "--task", "FILE@sums", "-T", "x=1", "--output", "OUT"], "-T x: none"),
        (["--model", "tiny:none", "--task", "FILE@sums", "--output", "OUT"], "cannot sample from"),
        (["--model", "MODEL", "--checkpoint", "STATE", "--task", "FILE@sums", "--output", "OUT"],
         "weights cannot be sampled from"),
        (["--model", "tiny:qwen3", "--checkpoint", "SAMPLER", "--task", "FILE@sums", "--output",
          "OUT"], "cannot sample from tiny:qwen3|was trained on"),
        (["--run", "OUT", "--task", "FILE@sums", "--output", "OUT"], "no such folder"),
        (["--model", "MODEL", "--task", "FILE@sums", "--renderer", "qwen33", "--output", "OUT"],
         "renderer 'qwen33'"),
        (["--model", "MODEL", "--suite", "safety", "--output", "OUT"], "strong_reject needs judge"),
        (["--model", "MODEL", "--suite", "chat", "--score", "x", "--output", "OUT"], "one task"),
        (["--model", "MODEL", "--task", "FILE@sums", "--suites", "FILE", "--output", "OUT"],
         "config FILE|not YAML|must be"),
        (["--model", "MODEL", "--task", "FILE@sums", "--output", "FILE"], "is a file"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("service")
def test_bad_input(arguments, phrase, rehearsal, trained_run, task_file, tmp_path):
    values = {"MODEL": rehearsal.model, "STATE": trained_run.state_path,
              "SAMPLER": trained_run.sampler_path, "OUT": str(tmp_path / "out")}  # fmt: skip
    given = [values.get(a, a).replace("FILE", str(task_file)) for a in arguments]
    with pytest.raises(InputError, match=phrase) as caught:
        run(*given)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "content, phrase",
    [(b"x = (", "it has none"), (b"\0\xff", "UnicodeDecodeError"), (b"", "it has none")],
)
def test_a_file_of_tasks_that_is_none(tmp_path, content, phrase):
    from tinkerlab.evaluation.inspect import suites, tasks

    file = tmp_path / "bad.py"
    file.write_bytes(content)
    (entry,) = suites.choose(suites.read(), None, [f"{file}@sums"])
    with pytest.raises(InputError, match=phrase):
        tasks.parameters(entry)
