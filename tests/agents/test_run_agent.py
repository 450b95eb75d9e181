"""A whole agent's run, with an agent that obeys, fails, hangs or means ill."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from repository import ROOT

KEY = 'sk-"quoted"-überlong-secret-0123456789'  # as in conftest.py
FORMS = (KEY, json.dumps(KEY)[1:-1], json.dumps(KEY, ensure_ascii=False)[1:-1])


def seen(folder: Path) -> dict[str, Any]:
    """What the agent was given."""
    return json.loads((folder / "seen.json").read_text())


def gone(pid: int) -> bool:
    """Whether the process has ended; one that nobody has waited for yet counts as ended."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_an_agent_that_obeys(run) -> None:
    ran = run("--secret", "ANTHROPIC_API_KEY", "--max-turns", "9", "--", "--model", "opus")
    assert ran.code == 0, ran.err
    assert ran.out.startswith("OK: the agent is done\n")
    assert "3 turns, $0.25" in ran.out and "results/ holds: " in ran.out
    # The readable log, in the order of the work, and nothing of it on stdout.
    shown = [line for line in ran.err.splitlines() if not line.startswith("$")]
    assert shown == [
        "agent started: fake-1",
        "I begin.",
        "> Bash: python scripts/check_data.py",
        "< OK  (+1 lines)",
    ]
    events = [json.loads(line)["type"] for line in ran.raw.splitlines()]
    assert events == ["system", "assistant", "assistant", "user", "result"]
    given = seen(ran.folder)["arguments"]
    assert given[0] == "-p" and given[-4:] == ["--max-turns", "9", "--model", "opus"]
    assert given[given.index("--plugin-dir") + 1] == str(ROOT)
    outcome = json.loads((ran.folder / ".agent" / "outcome.json").read_text())
    assert outcome["ok"] and outcome["plugin_loaded"] and outcome["results_valid"]


def test_what_the_agent_is_told(run, tmp_path: Path) -> None:
    told = seen(run("--model", "Qwen/Qwen3-8B", "--time-limit", "1800").folder)["task"]
    recipe = (ROOT / "templates" / "recipes" / "arithmetic.md").read_text()
    assert told.endswith(recipe.replace("${CLAUDE_PLUGIN_ROOT}", str(ROOT)))
    assert "Train Qwen/Qwen3-8B" in told and "within 30 minutes" in told
    assert "There is no TINKER_API_KEY: do everything on a rehearsal" in told
    assert "/tinker:research" in told
    (tmp_path / "task.md").write_text("Teach it to bark.")
    told = seen(run("--prompt", "task.md", workdir="other").folder)["task"]
    assert told.endswith("The task:\n\nTeach it to bark.")


def test_secrets_are_passed_by_name_alone(run) -> None:
    ran = run("--secret", "ANTHROPIC_API_KEY")
    environment = seen(ran.folder)["environment"]
    assert environment["ANTHROPIC_API_KEY"] == KEY
    assert "WANDB_API_KEY" not in environment
    assert environment["MY_SETTING"] == "kept"
    environment = seen(run(workdir="other").folder)["environment"]
    assert "ANTHROPIC_API_KEY" not in environment


def test_a_hosted_run_is_told_so(run, environment: dict[str, str]) -> None:
    environment["TINKER_API_KEY"] = "tml-not-a-real-key"
    ran = run("--secret", "TINKER_API_KEY")
    assert "TINKER_API_KEY is set: train on the Tinker service" in seen(ran.folder)["task"]
    assert "tml-not-a-real-key" not in ran.err + ran.out + ran.raw


@pytest.mark.parametrize(
    ("mode", "problem"),
    [
        ("crash", "the agent ended with exit code 3"),
        ("silent", "the agent ended without saying that it is done"),
        ("says error", "the agent says that it failed: Not logged in"),
        ("out of turns", "the agent says that it failed: error_max_turns"),
    ],
)
def test_an_agent_that_fails(run, mode: str, problem: str) -> None:
    ran = run(mode=mode)
    assert ran.code == 1
    assert ran.out.startswith(f"NOT OK: {problem}\n")
    assert "there is no results/ folder" in ran.out
    if mode == "crash":
        assert "(claude) Error: out of luck" in ran.err
        assert "out of luck" in (ran.folder / ".agent" / "stderr.log").read_text()


@pytest.mark.parametrize(
    ("mode", "finding"), [("no results", "no results/ folder"), ("forges", "[summary-field")]
)
def test_its_word_is_not_taken_for_results(run, mode: str, finding: str) -> None:
    ran = run("--json", mode=mode)
    outcome = json.loads(ran.out)
    assert ran.code == 1 and not outcome["ok"] and outcome["problem"] == ""
    assert any(finding in text for text in outcome["findings"]), outcome["findings"]


def test_the_time_limit_ends_one_that_will_not_end(run) -> None:
    """It ignores the interrupt and has a child; both are killed."""
    ran = run("--time-limit", "2", mode="hang")
    assert ran.code == 1
    assert "NOT OK: stopped at the time limit of 2 s" in ran.out
    assert gone(int((ran.folder / "child.pid").read_text()))
    assert "I begin." in ran.raw


def test_what_it_leaves_running_is_ended(run) -> None:
    """A child that holds the output open neither hangs us nor lives on."""
    ran = run(mode="leaves a child")
    assert ran.code == 0, ran.out
    assert gone(int((ran.folder / "child.pid").read_text()))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_the_agent_and_keeps_the_folder(start, tmp_path: Path, number: int) -> None:
    process = start(mode="waits")
    mark = tmp_path / "work" / "partial.txt"
    for _ in range(600):
        if mark.exists() and mark.read_text():
            break
        time.sleep(0.05)
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out.startswith("NOT OK: interrupted\n") and "Traceback" not in err
    assert mark.read_text() == "half of the work"
    assert "I begin." in (tmp_path / "work" / ".agent" / "stream.jsonl").read_text()


def test_hostile_output_does_no_harm(run) -> None:
    ran = run("--secret", "ANTHROPIC_API_KEY", mode="hostile")
    assert ran.code == 0, ran.out
    logs = "".join(path.read_text() for path in (ran.folder / ".agent").iterdir() if path.is_file())
    for form in FORMS:
        assert form not in ran.out + ran.err + logs
    # Not a part of it either, where a line was cut in the middle of it.
    assert KEY[:10] not in ran.out + ran.err + logs
    assert "the key is [ANTHROPIC_API_KEY]" in ran.err
    assert "plain: [ANTHROPIC_API_KEY]" in ran.err
    assert "(claude) on stderr: [ANTHROPIC_API_KEY]" in ran.err
    assert "\x1b" not in ran.err + ran.out and "\u202e" not in ran.err
    assert "\\x1b[2J" in ran.err
    assert max(map(len, ran.err.splitlines())) < 500
    # 6,000,000 and half a key were printed; 4,000,000 of a line are kept.
    assert "[cut: 2000000 more bytes]" in ran.raw
    assert len(ran.raw) < 8_300_000
    assert "warning: the agent did not load this plugin" in ran.out
    outcome = json.loads((ran.folder / ".agent" / "outcome.json").read_text())
    assert outcome["cut_bytes"] > 2_000_000
    assert outcome["unread_lines"] >= 6


def test_test_only_looks_and_starts_nothing(run) -> None:
    ran = run("--test-only", "--secret", "ANTHROPIC_API_KEY", "--json")
    document = json.loads(ran.out)
    assert ran.code == 0 and document["ok"], ran.out
    states = {part["name"]: part["ok"] for part in document["parts"]}
    assert states == dict.fromkeys(
        ("workspace", "task", "secret ANTHROPIC_API_KEY", "agent", "plugin", "login"), True
    )
    assert document["kept_back"] == ["WANDB_API_KEY"]
    assert document["command"].startswith("claude -p --output-format stream-json --verbose")
    assert not ran.folder.exists()
    assert KEY not in ran.out + ran.err


@pytest.mark.parametrize(
    ("arguments", "mode", "missing"),
    [
        (["--secret", "NOT_SET"], "good", "MISSING secret NOT_SET: NOT_SET is not set"),
        ([], "good", "MISSING login: not logged in"),
        (["--secret", "ANTHROPIC_API_KEY"], "bad plugin", "MISSING plugin: not valid: x Valid"),
        (["--secret", "ANTHROPIC_API_KEY"], "no version", "MISSING agent: "),
        (["--recipe", "cooking"], "good", "MISSING task: --recipe cooking: choose one of aime"),
        (["--agent", "codex"], "good", "MISSING agent: no codex on PATH; npm install"),
    ],
)
def test_test_only_names_what_is_missing(run, arguments, mode: str, missing: str) -> None:
    ran = run("--test-only", *arguments, mode=mode)
    assert ran.code == 1
    assert ran.out.startswith("NOT OK: something is missing\n")
    assert missing in ran.out
    assert not ran.folder.exists()


@pytest.mark.parametrize("word", ["aGVsbG8gd29ybGQ=", "f00dbabe0123"])
def test_a_secret_given_for_its_name_is_never_shown(run, word: str) -> None:
    ran = run("--test-only", "--secret", word)
    assert ran.code == 1 and "secret (not a name): give a variable's name" in ran.out
    assert word not in ran.out + ran.err
    ran = run("--secret", word)
    assert ran.code == 2 and word not in ran.out + ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--secret", "NOT_SET"], "--secret: NOT_SET is not set; export it first"),
        (["--secret", "not a name"], "give a variable's name, never the secret itself"),
        (["--secret", "MY_SETTING"], "MY_SETTING has fewer than 8 characters"),
        (["--recipe", "cooking"], "--recipe cooking: choose one of aime, arithmetic"),
        (["--prompt", "none.md"], "--prompt none.md: No such file"),
        (["--prompt", "."], "--prompt .: Is a directory"),
        (["--prompt", "empty.md"], "--prompt empty.md: it is empty"),
        (["--prompt", "latin.md"], "--prompt latin.md: not UTF-8 text"),
        (["--prompt", "long.md"], "--prompt long.md: over 1,000,000 bytes"),
        (["--time-limit", "0"], "--time-limit must be above 0"),
        (["--time-limit", "inf"], "--time-limit must be above 0"),
        (["--max-turns", "0"], "--max-turns must be at least 1"),
        (["--agent", "codex", "--max-turns", "3"], "codex has no such limit"),
        (["--agent", "codex"], "no codex on PATH; npm install -g @openai/codex"),
    ],
)
def test_bad_input_is_one_line(run, tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "empty.md").write_text(" \n")
    (tmp_path / "latin.md").write_bytes("für".encode("latin-1"))
    (tmp_path / "long.md").write_text("x" * 1_000_001)
    ran = run(*arguments)
    assert ran.code == 2 and ran.out == ""
    assert ran.err.startswith("error: ") and ran.err.count("\n") == 1
    assert message in ran.err
    assert not ran.folder.exists()


def test_a_folder_in_use_is_left_alone(run, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "mine.txt").write_text("mine")
    ran = run()
    assert ran.code == 2 and "--workdir work is not empty; name a new folder" in ran.err
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["mine.txt"]
    ran = run(workdir="work/mine.txt")
    assert ran.code == 2 and "is not empty" in ran.err
    ran = run(workdir="work/mine.txt/below")
    assert ran.code == 2 and "mine.txt is a file" in ran.err


def test_a_task_is_needed_and_only_one(run) -> None:
    ran = run("--recipe", "arithmetic", "--prompt", "x.md")
    assert ran.code == 2 and "not allowed with" in ran.err
