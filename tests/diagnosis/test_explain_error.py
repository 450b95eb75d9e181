"""Error texts to causes: every known error fires, every class is explained, healthy logs are not."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
from pathlib import Path

import pytest
from error_examples import EXAMPLES
from repository import ROOT

import explain_error
from tinkerlab.diagnosis.errors import reference
from tinkerlab.diagnosis.errors.explain import explain
from tinkerlab.diagnosis.errors.patterns import known_patterns
from tinkerlab.errors import InputError

CAUSES = {pattern.cause for pattern in known_patterns()}


def causes(text: str) -> list[str]:
    return [finding.cause for finding in explain(text.splitlines()).findings]


def exception_classes(package: str) -> set[str]:
    """Names of the exception classes that the installed ``package`` defines, read from source."""
    spec = importlib.util.find_spec(package)
    assert spec and spec.submodule_search_locations
    found = set()
    for file in Path(next(iter(spec.submodule_search_locations))).rglob("*.py"):
        if file.stem.endswith("_test") or {"third_party", "recipes", "tests"} & set(file.parts):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                bases = {ast.unparse(base).rsplit(".", 1)[-1] for base in node.bases}
                if any(base.endswith(("Error", "Exception", "Warning")) for base in bases):
                    found.add(node.name)
    return found


def test_every_known_error_has_an_example_and_every_example_fires() -> None:
    assert set(EXAMPLES) == CAUSES


@pytest.mark.parametrize("cause", sorted(CAUSES))
def test_known_error(cause: str) -> None:
    assert causes(EXAMPLES[cause]) == [cause]


@pytest.mark.parametrize("package", ["tinker", "tinker_cookbook"])
def test_every_exception_class_is_explained(package: str) -> None:
    classes = exception_classes(package)
    assert len(classes) > 15
    unknown = [name for name in sorted(classes) if "unknown-error" in (causes(f"{name}: x") or [0])]
    silent = [name for name in sorted(classes) if not causes(f"{name}: x")]
    assert (unknown, silent) == ([], [])
    listed = {name.rsplit(".", 1)[-1] for p in known_patterns() for name in p.exceptions}
    assert classes <= listed


def test_every_listed_class_exists() -> None:
    for pattern in known_patterns():
        for name in pattern.exceptions:
            module, _, attribute = name.rpartition(".")
            assert hasattr(importlib.import_module(module), attribute), name


@pytest.mark.parametrize(
    "status", [400, 401, 402, 403, 404, 409, 410, 422, 429, 500, 502, 503, 504]
)
def test_every_status_has_a_cause(status: int) -> None:
    assert len(causes(f"Error code: {status} - something went wrong")) == 1


TRACEBACK = """\
2026-01-01 10:00:00 INFO step 3
Traceback (most recent call last):
  File "/home/me/train.py", line 41, in main
    result = future.result()
  File "/venv/lib/python3.11/site-packages/tinker/lib/api_future_impl.py", line 400, in result
    raise RequestFailedError(message)
tinker.RequestFailedError: Request failed: {} for self.request_id='r'
"""


def test_the_particular_cause_hides_the_general_one() -> None:
    text = TRACEBACK.format("Could not convert loss function inputs to array record")
    (finding,) = explain(text.splitlines(), "train.log").findings
    assert finding.cause == "loss-inputs"
    assert finding.where == "train.log:2"
    assert any("/home/me/train.py:41" in fact for fact in finding.evidence)
    assert causes(TRACEBACK.format("something new")) == ["request-failed"]


def test_a_chained_traceback_is_one_error() -> None:
    text = TRACEBACK.format("x").replace(
        "tinker.RequestFailedError",
        "ValueError: inner\n\nDuring handling of the above exception, another exception occurred:\n\n"
        'Traceback (most recent call last):\n  File "/home/me/train.py", line 50, in main\n    y()\n'
        "tinker.RequestFailedError",
    )
    assert "request-failed" in causes(text)


def test_repeats_are_counted_and_the_last_error_leads() -> None:
    log = ["INFO fine"] * 3 + ["tinker.RateLimitError: Error code: 429"] * 4
    log += ["tinker.AuthenticationError: Error code: 401 - x"]
    first, second = explain(log, "a.log").findings
    assert (first.cause, second.cause) == ("key-refused", "rate-limited")
    assert second.where == "a.log:4"
    assert "4 times, last at line 7" in second.evidence


def test_an_unknown_error_is_a_warning_with_its_line() -> None:
    log = TRACEBACK.format("x").replace(
        "tinker.RequestFailedError: Request failed", "KeyError: 'a'"
    )
    diagnosis = explain(log.splitlines(), "t.log")
    assert [f.cause for f in diagnosis.findings] == ["unknown-error"]
    assert diagnosis.ok
    assert any("train.py:41" in fact for fact in diagnosis.findings[0].evidence)


HEALTHY = [
    "2026-01-01 10:00:{:02d} INFO step {} loss 1.2 error_rate=0.0 errors: 0",
    '2026-01-01 10:00:{:02d} INFO HTTP Request: POST https://x/api/v1/retrieve_future "HTTP/1.1 408 Request Timeout" {}',
    '2026-01-01 10:00:{:02d} INFO HTTP Request: POST https://x/api/v1/asample "HTTP/1.1 200 OK" {}',
    "2026-01-01 10:00:{:02d} INFO 0 errors, 0 failures after step {}",
    "2026-01-01 10:00:{:02d} INFO reward 0.4, nll 2.1, kl 0.002, no warnings at step {}",
    "2026-01-01 10:00:{:02d} INFO sampled: 'I am not sure that this is a mistake' at {}",
]


def test_a_healthy_log_is_accused_of_nothing() -> None:
    log = [line.format(i % 60, i) for i in range(60) for line in HEALTHY]
    diagnosis = explain(log)
    assert diagnosis.findings == []
    assert diagnosis.checked == {"lines": 360}


def log_with_gap(gap: int, note: str = "INFO waiting for batch 20") -> list[str]:
    lines = [f"2026-01-01 10:{i:02d}:00 INFO step {i}" for i in range(20)]
    minute = 19 + gap
    return [
        *lines,
        f"2026-01-01 10:19:05 {note}",
        f"2026-01-01 {10 + minute // 60}:{minute % 60:02d}:05 x",
    ]


def test_a_log_that_stands_still_is_told_with_both_lines() -> None:
    (finding,) = explain(log_with_gap(30), "a.log").findings
    assert (finding.cause, finding.severity) == ("log-stands-still", "warning")
    assert "30 minutes" in finding.what
    assert finding.evidence[0].startswith("line 21: ") and "batch 20" in finding.evidence[0]


def test_short_gaps_and_explained_ones_are_not() -> None:
    assert explain(log_with_gap(4)).findings == []
    paused = log_with_gap(30, EXAMPLES["capacity-pause"])
    assert [f.cause for f in explain(paused).findings] == ["capacity-pause"]


@pytest.mark.parametrize(
    ("exception", "gave_up", "cause"),
    [
        ("", "ERROR no reply after 300 s", "sdk-loop-blocked"),
        ("Last exception: APITimeoutError: Request timed out..", "x stuck", "sdk-loop-blocked"),
        ("Last exception: APIConnectionError: Connection error..", "x stuck", "heartbeat-failed"),
        ("", "INFO step 5", "heartbeat-failed"),
    ],
)
def test_heartbeats_that_stopped_before_the_hang(exception: str, gave_up: str, cause: str) -> None:
    log = [
        "2026-01-09 03:10:05 INFO turn 5: sampling",
        f"2026-01-09 03:15:05 {gave_up}",
        f"2026-01-09 03:15:06 WARNING Session heartbeat failed for 187 s for session s. {exception}",
    ]
    assert explain(log).findings[0].cause == cause
    if cause == "sdk-loop-blocked":
        assert any("03:11:59" in fact for fact in explain(log).findings[0].evidence)


def test_keys_are_blanked(capsys) -> None:
    explain_error.main(["tinker.AuthenticationError: Error code: 401 - tml-abcdefghijklmn"])
    out = capsys.readouterr().out
    assert "abcdefghijklmn" not in out and "tml-***" in out


def test_script_reads_a_file_a_message_and_stdin(tmp_path, monkeypatch, capsys) -> None:
    log = tmp_path / "train.log"
    log.write_text("x\n" + EXAMPLES["billing"] + "\nhalf a li")
    assert explain_error.main([str(log), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["findings"][0]["where"] == "train.log:2"
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO(EXAMPLES["poisoned-client"]))
    assert explain_error.main(["-"]) == 1
    assert "[poisoned-client] stdin:1" in capsys.readouterr().out
    assert explain_error.main([EXAMPLES["capacity-pause"]]) == 0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"\x00\x01\x02", "binary"),
        (None, "No such file"),
    ],
)
def test_bad_files_are_one_line(content: bytes | None, words: str, tmp_path) -> None:
    file = tmp_path / "a.log"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=words):
        explain_error.main([str(file)])


@pytest.mark.parametrize("word", ["train", "missing.log", "runs/first", "x" * 5000, "x" * 300])
def test_one_word_is_no_message(word: str) -> None:
    with pytest.raises(InputError, match=r"(?i)no such file"):
        explain_error.main([word])
    assert explain_error.main(["MemoryError"]) == 1


def test_a_folder_is_sent_to_the_run_analysis(tmp_path) -> None:
    with pytest.raises(InputError, match=r"analyze_run\.py"):
        explain_error.main([str(tmp_path)])


def test_the_page_is_the_table() -> None:
    assert reference.PAGE.read_text(encoding="utf-8") == reference.render(), (
        "run: python scripts/explain_error.py --write-reference"
    )


def test_every_script_that_is_named_exists() -> None:
    for pattern in known_patterns():
        if pattern.then.startswith("python scripts/"):
            assert (ROOT / pattern.then.split()[1]).exists(), pattern.then
