"""Unit tests as a grader, and code that does not want to be tested."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tinkerlab.errors import InputError
from tinkerlab.grading import Attempt, load_grader, require_usable
from tinkerlab.tasks import Task, load_tasks

TESTS = ["assert square(2) == 4", "assert square(-3) == 9"]
RIGHT = "def square(x): return x * x\n"


@pytest.fixture(scope="module", params=["namespaces", "processes"])
def code_tests(request):
    grader = load_grader("code_tests", timeout=2, isolate_code=request.param == "namespaces")
    yield grader
    grader.close()


def grade(grader, completion, **row):
    row = row or {"tests": TESTS}
    return grader.grade([Attempt(completion, row=row)])[0]


@pytest.mark.parametrize(
    ("completion", "row"),
    [
        (RIGHT, {"tests": TESTS}),
        (f"Sure:\n```python\n{RIGHT}```\nDone.", {"tests": "\n".join(TESTS)}),
        (f"```\nfirst try\n```\n```python\n{RIGHT}```", {"test_list": TESTS}),
        (f"```python\n{RIGHT}", {"tests": TESTS}),  # the closing fence was cut off
        (RIGHT, {"test_list": ["assert square(two) == 4"], "test_setup_code": "two = 2"}),
        (
            "    return x * x\n",
            {
                "code_prompt": "def square(x):\n",
                "entry_point": "square",
                "test": "def check(candidate):\n    assert candidate(3) == 9\n",
            },
        ),
    ],
)
def test_right_code_passes(code_tests, completion, row):
    result = grade(code_tests, completion, **row)
    assert (result.score, result.correct, result.error) == (1.0, True, None)


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        ("def square(x): return x", "tests: AssertionError"),
        ("def other(x): return x", "tests: NameError"),
        ("def square(x:", "solution: SyntaxError"),
        ("", "tests: NameError"),
        ("no code at all", "solution: SyntaxError"),
        ("import sys\nsys.exit(0)", "solution: SystemExit"),
        ("import os\nos._exit(0)", "ended the process"),
        ("def square(x):\n    import os\n    os._exit(0)", "ended the process"),
        ("while True: pass", "no end within 2 s"),
        ("import time\ntime.sleep(60)", "no end within 2 s"),
        ("x = bytearray(10**10)", "solution: MemoryError"),
        ("def square(x): return square(x)", "tests: RecursionError"),
        ("raise KeyboardInterrupt", "solution: KeyboardInterrupt"),
        ("open('big', 'wb').write(b'x' * 10**8)", "solution: OSError"),
        ("import os\nos.write(99, b'{\"failed\": null}')", "solution: OSError"),
        ("import ctypes\nctypes.string_at(0)", "ended the process"),
    ],
)
def test_wrong_and_hostile_code_fails_for_a_reason(code_tests, completion, reason):
    result = grade(code_tests, completion)
    assert (result.score, result.correct, result.error) == (0.0, False, None)
    assert reason in result.detail


def test_a_report_in_every_descriptor_is_not_believed(code_tests):
    forged = (
        "import os\n"
        "for fd in range(64):\n"
        '    try: os.write(fd, b\'{"secret": "x", "failed": null}\\n\')\n'
        "    except OSError: pass\n"
        "os._exit(0)"
    )
    assert grade(code_tests, forged).correct is False


def test_noise_and_stray_processes_do_not_matter(code_tests):
    noisy = f"print('x' * 100_000_000)\nimport os\nos.system('echo loud')\n{RIGHT}"
    assert grade(code_tests, noisy).correct is True
    stray = (
        "import os, time\n"
        "for _ in range(3):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork() == 0:\n"
        "            os.execvp('sleep', ['sleep', '311'])\n"
        "        os._exit(0)\n"
        "time.sleep(0.2)\n" + RIGHT
    )
    assert grade(code_tests, stray).correct is True
    time.sleep(0.2)
    assert b"sleep\x00311" not in b"".join(map(command_line, Path("/proc").glob("[0-9]*")))


def command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def test_keys_are_out_of_reach(monkeypatch):
    monkeypatch.setenv("TINKER_API_KEY", "tml-verysecret")
    grader: Any = load_grader("code_tests", timeout=5)
    try:
        spy = (
            "import os\n"
            "found = str(dict(os.environ))\n"
            f"try: found += open('/proc/{os.getpid()}/environ').read()\n"
            "except OSError: pass\n"
            f"assert 'verysecret' not in found\n{RIGHT}"
        )
        result = grade(grader, spy)
        if grader.facts["pid_namespace"]:  # without namespaces, a same-user process can be read
            assert result.correct is True, result.detail
    finally:
        grader.close()


def test_no_network_where_the_kernel_allows_it():
    grader: Any = load_grader("code_tests", timeout=5)
    try:
        if grader.facts["network"]:
            pytest.skip("this kernel grants no network namespace")
        call = f"import socket\nsocket.create_connection(('127.0.0.1', 9), timeout=2)\n{RIGHT}"
        assert "unreachable" in str(grade(grader, call).detail)
    finally:
        grader.close()


def test_one_attempt_cannot_spoil_the_next(code_tests):
    spoil = f"import builtins\nbuiltins.abs = None\nimport math\nmath.sqrt = None\n{RIGHT}"
    first, second = code_tests.grade(
        [
            Attempt(spoil, row={"tests": TESTS}),
            Attempt(RIGHT, row={"tests": ["assert abs(-1) == 1", "import math; math.sqrt(4)"]}),
        ]
    )
    assert first.correct is True
    assert second.correct is True, second.detail


def test_killing_the_worker_costs_only_that_attempt(code_tests):
    kill = f"import os\nos.kill(os.getppid(), 9)\n{RIGHT}"
    _, second = code_tests.grade([Attempt(kill, row={"tests": TESTS}), right_attempt()])
    assert second.correct is True


def right_attempt():
    return Attempt(RIGHT, row={"tests": TESTS})


def test_human_eval_references_pass_and_others_do_not(code_tests):
    tasks = load_tasks("human_eval", limit=12)
    require_usable(code_tests, tasks)
    right = [Attempt(str(t.answer), t.prompt, t.answer, t.row) for t in tasks]
    wrong = [Attempt("    return None\n", t.prompt, t.answer, t.row) for t in tasks]
    assert all(g.correct for g in code_tests.grade(right))
    assert not any(g.correct for g in code_tests.grade(wrong))


def test_rows_without_tests_are_refused(code_tests):
    message = [{"role": "user", "content": "?"}]
    with pytest.raises(InputError, match="line 4: no tests"):
        require_usable(code_tests, [Task(message, None, {"tests": []}, "line 4")])
