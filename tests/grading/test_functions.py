"""A user's scoring function: what it may take and give, and every way in which it can fail."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tinkerlab.errors import InputError
from tinkerlab.grading import Attempt, load_grader, require_usable
from tinkerlab.tasks import Task

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def grader(tmp_path):
    """``grader(source, name="score", **options)``: the grader of a file with that source."""
    made = []

    def make(source, name="score", **options):
        file = tmp_path / "my_rewards.py"
        file.write_text(source)
        made.append(load_grader(f"{file}:{name}", **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def attempts(*completions, **fields):
    answer = fields.pop("answer", None)
    prompt = [{"role": "user", "content": "why?"}]
    return [Attempt(text, prompt, answer, fields) for text in completions]


def only(grader, completion="x", **fields):
    return grader.grade(attempts(completion, **fields))[0]


def test_parameters_are_filled_by_name(grader):
    made = grader(
        "def score(completion, answer, level, prompt=None, *, row=None, other='kept', **rest):\n"
        "    text = f'{completion} {answer} {level} {prompt[0][\"content\"]} {sorted(row)} {other}'\n"
        "    return {'score': 0.5, 'extracted': text + ' ' + str(sorted(rest))}"
    )
    grade = only(made, "reply", answer=3, level="hard", topic="t")
    assert grade.score == 0.5
    assert grade.correct is None
    assert grade.extracted == "reply 3 hard why? ['level', 'topic'] kept ['topic']"


@pytest.mark.parametrize(
    ("body", "score", "correct"),
    [
        ("return 0.25", 0.25, None),
        ("return -3", -3.0, None),
        ("return completion == 'x'", 1.0, True),
        ("import numpy; return numpy.float32(0.5)", 0.5, None),
        ("import numpy; return numpy.bool_(False)", 0.0, False),
        ("from fractions import Fraction; return Fraction(1, 2)", 0.5, None),
        ("return {'score': 2, 'correct': True}", 2.0, True),
    ],
)
def test_what_a_function_may_return(grader, body, score, correct):
    grade = only(grader(f"def score(completion):\n    {body}"))
    assert (grade.score, grade.correct, grade.error) == (score, correct, None)


@pytest.mark.parametrize(
    ("body", "phrase"),
    [
        ("return None", "returned None, not a number"),
        ("return '0.5'", "returned str '0.5', not a number"),
        ("return float('nan')", "returned nan, not a finite number"),
        ("return 10**400", "raised OverflowError"),
        ("return float('-inf')", "returned -inf"),
        ("return [1]", "returned list"),
        ("return {'reward': 1}", "without 'score'"),
        ("import numpy; return numpy.ones(3)", "several values"),
        ("return 1 / 0", "raised ZeroDivisionError: division by zero"),
        ("raise ValueError('two\\nlines')", "raised ValueError: two lines"),
        ("import sys; sys.exit('bye')", "raised SystemExit: bye"),
        ("return bytearray(10**12)", "out of memory"),
        ("return missing_field", "raised NameError"),
    ],
)
def test_a_failure_is_a_grade_with_its_reason_and_the_failure_score(grader, body, phrase):
    grade = only(grader(f"def score(completion):\n    {body}", failure_score=-1.0))
    assert grade.score == -1.0
    assert phrase in grade.error
    assert "\n" not in grade.error


def test_async_functions_are_awaited(grader):
    made = grader(
        "import asyncio\n"
        "async def score(completion, answer):\n"
        "    await asyncio.sleep(0)\n"
        "    return completion == answer"
    )
    assert [g.correct for g in made.grade(attempts("a", "b", answer="a"))] == [True, False]


@pytest.mark.parametrize(
    ("bad", "phrase"),
    [
        ("time.sleep(60)", "no result within 0.5 s"),
        ("print('last words'); os._exit(3)", r"crashed \(exit code 3: last words\)"),
        ("os.kill(os.getpid(), 11)", "killed by SIGSEGV"),
        ("while True: pass", "no result within"),
    ],
)
def test_after_a_crash_or_a_timeout_the_others_are_still_graded(grader, bad, phrase):
    import re

    made = grader(
        f"import os, time\ndef score(completion):\n    if completion == 'bad':\n        {bad}\n"
        "    return len(completion)",
        timeout=0.5,
    )
    grades = made.grade(attempts("a", "bad", "abc", "bad", "ab"))
    assert [grade.score for grade in grades] == [1.0, 0.0, 3.0, 0.0, 2.0]
    assert re.search(phrase, grades[1].error)
    assert re.search(phrase, grades[3].error)
    assert only(made, "abcd").score == 4.0


def test_no_secret_reaches_the_function(grader, monkeypatch):
    monkeypatch.setenv("TINKER_API_KEY", "tml-verysecret")
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    source = (
        "import os\n"
        "def score(completion):\n"
        "    files = sorted(os.listdir('/proc/self/fd'))\n"
        "    return {'score': 1, 'extracted': f'{dict(os.environ)} {os.path.expanduser(\"~\")}'}"
    )
    grade = only(grader(source))
    assert "verysecret" not in grade.extracted
    assert "tinker-grader-" in grade.extracted.rsplit(" ", 1)[-1]
    assert str(Path.home()) != grade.extracted.rsplit(" ", 1)[-1]


def test_no_open_file_is_inherited(grader, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("s")
    descriptor = os.open(secret, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    source = (
        "import os\n"
        "def score(completion):\n"
        "    names = []\n"
        "    for fd in os.listdir('/proc/self/fd'):\n"
        "        try: names.append(os.readlink(f'/proc/self/fd/{fd}'))\n"
        "        except OSError: pass\n"
        "    return {'score': 1, 'extracted': ' '.join(names)}"
    )
    try:
        assert str(secret) not in only(grader(source)).extracted
    finally:
        os.close(descriptor)


def test_what_it_prints_is_harmless(grader):
    made = grader("def score(completion):\n    print('x' * 10**7)\n    return 1")
    assert only(made).score == 1.0


def test_children_of_the_function_die_with_the_grader(grader, tmp_path):
    made = grader(
        "import subprocess\n"
        "def score(completion):\n"
        "    return {'score': 1, 'extracted': str(subprocess.Popen(['sleep', '300']).pid)}"
    )
    pid = int(only(made).extracted)
    made.close()
    time.sleep(0.2)
    assert not running(pid)


def test_a_worker_dies_with_its_host_even_in_a_hung_call(tmp_path):
    (tmp_path / "my_rewards.py").write_text(
        "import os, pathlib\n"
        "def score(completion):\n"
        f"    pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\n"
        "    while True: pass"
    )
    host = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from tinkerlab.grading import Attempt, load_grader\n"
            f"load_grader({str(tmp_path / 'my_rewards.py:score')!r}).grade([Attempt('x')])",
        ],
        env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
    )
    pid_file = tmp_path / "pid"
    deadline = time.monotonic() + 60
    while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    host.send_signal(signal.SIGKILL)
    host.wait()
    pid = int(pid_file.read_text())
    deadline = time.monotonic() + 10
    while running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running(pid)


def running(pid: int) -> bool:
    """Whether the process is there and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_several_threads_share_one_grader(grader):
    made = grader("def score(completion):\n    return float(completion)")
    with ThreadPoolExecutor(8) as pool:
        batches = [[str(10 * i + j) for j in range(5)] for i in range(20)]
        found = list(pool.map(lambda batch: made.grade(attempts(*batch)), batches))
    assert [[g.score for g in grades] for grades in found] == [
        [float(text) for text in batch] for batch in batches
    ]


def test_odd_text_arrives_as_it_is(grader):
    made = grader("def score(completion, answer):\n    return completion == answer")
    odd = "\ud800 \0 \u2028 𝄞" + "x" * 1_000_000
    assert only(made, odd, answer=odd).correct is True


def test_neighbours_can_be_imported_and_our_scripts_do_not_get_in_the_way(grader, tmp_path):
    (tmp_path / "helpers.py").write_text("def half(): return 0.5")
    (tmp_path / "report.py").write_text("WHOSE = 'mine'")  # we have a script of this name
    made = grader(
        "import helpers, report\n"
        "def score(completion):\n    return {'score': helpers.half(), 'extracted': report.WHOSE}"
    )
    grade = only(made)
    assert (grade.score, grade.extracted) == (0.5, "mine")
    assert not (tmp_path / "__pycache__").exists()


@pytest.mark.parametrize(
    ("source", "phrase"),
    [
        ("def other(completion): return 1", "no function 'score'; it has other"),
        ("x = 1", "no function 'score'; it has no functions"),
        ("score = 3", "'score' is int, not a function"),
        ("def score(text, ref): return 1", r"takes \(text, ref\) but no 'completion'"),
        ("def score(completions): return [1]", "called once for each completion"),
        ("def score(completion, /): return 1", "can't be given by name"),
        ("def score(completion:\n  return 1", r"my_rewards.py line 1: syntax error"),
        ("import no_such_module", "line 1: can't be imported .ModuleNotFoundError"),
        ("import sys\nsys.exit(1)", "line 2: can't be imported .SystemExit"),
        ("import os\nos._exit(7)", "exit code 7"),
    ],
)
def test_a_function_that_cannot_be_used_is_refused_before_use(grader, source, phrase):
    with pytest.raises(InputError, match=phrase) as caught:
        grader(source)
    assert "\n" not in str(caught.value)


def test_rows_without_what_the_function_takes_are_named(grader):
    made = grader("def score(completion, answer, level): return 1")
    message = [{"role": "user", "content": "?"}]
    rows = [
        Task(message, "a", {"level": 1}, "line 1"),
        Task(message, None, {"level": 1}, "line 2"),
        Task(message, "a", {}, "line 3"),
    ]
    with pytest.raises(InputError, match=r"2 of 3 .*line 2: no answer.*line 3: no field 'level'"):
        require_usable(made, rows)
    assert "which the row does not have" in only(made, answer=1).error


def test_a_memory_limit_that_an_import_breaks_is_named(grader):
    with pytest.raises(InputError, match="raise the grader's memory limit"):
        grader("x = bytearray(10**9)\ndef score(completion): return 1", memory_mb=512)


def test_after_running_out_of_memory_the_next_attempts_get_a_fresh_process(grader):
    made = grader(
        "kept = []\n"
        "def score(completion):\n"
        "    kept.append(bytearray(int(completion)))\n"
        "    return len(kept)",
        memory_mb=600,
    )
    grades = made.grade(attempts("100000000", "100000000", "900000000", "100000000"))
    assert [grade.score for grade in grades] == [1.0, 2.0, 0.0, 1.0]
    assert "out of memory" in str(grades[2].error)
