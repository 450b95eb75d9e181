"""Logs as other loggers, launchers and collectors write them: the same causes, no false alarms."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

import explain_error
from tinkerlab.diagnosis.errors.explain import explain
from tinkerlab.diagnosis.errors.times import stamp_of
from tinkerlab.errors import InputError

START = datetime(2026, 1, 9, 3, 10, 2)
Writer = Callable[[datetime, str], str]


def plain(pattern: str) -> Writer:
    return lambda time, text: f"{time.strftime(pattern)} {text}"


WAYS: dict[str, Writer] = {
    "brackets": plain("[%H:%M:%S]"),
    "time of day": plain("%H:%M:%S,123"),
    "rich": plain("[%m/%d/%y %H:%M:%S] INFO    "),
    "month first": plain("%m/%d/%Y %H:%M:%S - INFO -"),
    "vllm": plain("INFO %m-%d %H:%M:%S [engine.py:31]"),
    "absl": plain("I%m%d %H:%M:%S.123456 4711 train.py:33]"),
    "syslog": plain("Jan  9 %H:%M:%S host train[33]:"),
    "slashes": plain("%Y/%m/%d %H:%M:%S"),
    "loguru": plain("%Y-%m-%d %H:%M:%S.123 | INFO     | __main__:loop:33 -"),
    "zone": plain("%Y-%m-%dT%H:%M:%S.123+02:00"),
    "container": plain("%Y-%m-%dT%H:%M:%S.123456789Z stderr F"),
    "colours": plain("\x1b[2m%Y-%m-%d %H:%M:%S\x1b[0m [\x1b[32minfo\x1b[0m]"),
    "seconds": lambda time, text: f"{time.timestamp():.3f} {text}",
    "milliseconds": lambda time, text: f"{time.timestamp() * 1000:.0f} {text}",
    "json, seconds": lambda time, text: json.dumps({"msg": text, "ts": time.timestamp()}),
    "json, date": lambda time, text: json.dumps({"message": text, "asctime": time.isoformat()}),
}


def written(way: str, events: list[tuple[float, str]]) -> list[str]:
    return [WAYS[way](START + timedelta(seconds=seconds), text) for seconds, text in events]


def causes(lines: list[str]) -> list[str]:
    return [finding.cause for finding in explain(lines).findings]


@pytest.mark.parametrize("way", WAYS)
def test_a_stand_still_in_every_way_to_write_times(way: str) -> None:
    steps = [(i * 9.0, f"step {i}/400 nll 1.2") for i in range(20)]
    assert causes(written(way, steps)) == []
    assert causes(written(way, [*steps, (2600.0, "step 20/400 nll 1.2")])) == ["log-stands-still"]


@pytest.mark.parametrize("way", WAYS)
def test_heartbeats_before_a_hang_in_every_way(way: str) -> None:
    lines = written(
        way,
        [
            (3, "turn 5: sampling"),
            (303, "turn 5: no reply after 300 s"),
            (304, "Session heartbeat failed for 187.2 seconds for session s."),
        ],
    )
    finding = explain(lines).findings[0]
    assert finding.cause == "sdk-loop-blocked"
    if "seconds" not in way:  # those are in UTC, wherever this runs
        assert any("03:11:58" in fact for fact in finding.evidence)


def test_past_midnight_and_mixed_loggers() -> None:
    night = [
        f"[{23 + m // 60 if m < 60 else 0:02d}:{m % 60:02d}:00] step {m}" for m in range(50, 70)
    ]
    assert causes(night) == []
    mixed = [f"[10:{m:02d}:00] step {m}" for m in range(20)]
    mixed.insert(10, "2026-01-09 08:10:00 INFO another logger, in another zone")
    assert causes(mixed) == []


def test_progress_bars_and_durations_are_no_times() -> None:
    for text in (
        "12%|# | 12/100 [01:45<33:10, 8.9s/it]",
        "01:02:33<05:11:00",
        "took 1700000000000",
    ):
        assert stamp_of(text) is None


def test_evaluations_that_come_again_are_part_of_the_loop() -> None:
    events, now = [], 0.0
    for step in range(40):
        now += 20
        events.append((now, f"step {step} loss 1.2"))
        if step % 10 == 9:
            now += 900
    assert causes(written("brackets", events)) == []
    events.append((now + 9000, "step 40 loss 1.2"))
    assert causes(written("brackets", events)) == ["log-stands-still"]
    once = [(i * 9.0, f"step {i}") for i in range(20)]
    once += [(180.0, "evaluating on 400 problems"), (1400.0, "step 20")]
    assert causes(written("brackets", once)) == []


TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "/home/me/train.py", line 3, in <module>',
    "    save()",
    "tinker.ConflictError: Error code: 409 - {'detail': \"Checkpoint 'a' already exists for m\"}",
]
BEFORE = [
    "[rank0]: ",
    "(Worker pid=3121) ",
    "2026-01-09T03:10:02.1Z stderr F ",
    "trainer-0  | ",
    "",
]


@pytest.mark.parametrize("before", BEFORE)
def test_a_traceback_behind_a_launchers_prefix(before: str) -> None:
    (finding,) = explain([before + line for line in TRACEBACK]).findings
    assert finding.cause == "checkpoint-exists"
    assert any("/home/me/train.py:3" in fact for fact in finding.evidence)
    unknown = [*TRACEBACK[:-1], "KeyError: 'reward'"]
    (finding,) = explain([before + line for line in unknown]).findings
    assert finding.cause == "unknown-error"
    assert finding.evidence[0] == "KeyError: 'reward'"


def test_exception_groups_workers_and_json() -> None:
    group = ["  + Exception Group Traceback (most recent call last):"]
    group += ['  |   File "/home/me/train.py", line 1, in main']
    group += ["  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)"]
    group += ["  +-+---------------- 1 ----------------"]
    group += ["    | " + line for line in TRACEBACK]
    group += ["    +------------------------------------", "step 4"]
    assert causes(group) == ["checkpoint-exists"]
    worker = ["multiprocessing.pool.RemoteTraceback: ", '"""', *TRACEBACK, '"""', ""]
    worker += ["The above exception was the direct cause of the following exception:", ""]
    assert causes([*worker, *TRACEBACK]) == ["checkpoint-exists"]
    packed = json.dumps({"level": "error", "exc_info": "\n".join(TRACEBACK)})
    (finding,) = explain([packed]).findings
    assert finding.cause == "checkpoint-exists"
    assert any("/home/me/train.py:3" in fact for fact in finding.evidence)


def test_rich_tracebacks() -> None:
    lines = [
        "╭──────────── Traceback (most recent call last) ────────────╮",
        "│ /home/me/train.py:41 in main                              │",
        "│ ❱ 41 │   tc.save_state('a').result()                      │",
        "╰───────────────────────────────────────────────────────────╯",
        TRACEBACK[-1],
    ]
    (finding,) = explain(lines).findings
    assert finding.cause == "checkpoint-exists"
    assert any("/home/me/train.py:41" in fact for fact in finding.evidence)


def raised(*frames: str, error: str) -> str:
    lines = [f'  File "{frame}\n    code()' for frame in frames]
    return "\n".join([TRACEBACK[0], *lines, error])


VARIANTS = {
    "checkpoint-exists": [
        "Error code: 409 - {'detail': 'A checkpoint named 000060 already exists.'}",
        "Error code: 409 - {'error': 'checkpoint name already in use: step-100'}",
    ],
    "capacity-pause": ["WARNING Training is paused (Tinker backend is at capacity)"],
    "engine-rejects-adapter": [
        "ValueError: LoRA target module lm_head is not supported",
        "RuntimeError: Loading lora adapter failed: unsupported target module unembed_tokens",
        "ValueError: found unexpected modules ['unembed_tokens']",
    ],
    "image-processor": ["Error code: 400 - expected_tokens 256 does not match image tokens 1024"],
    "tensor-in-loss-config": [
        "TypeError: only size-1 arrays can be converted to Python scalars",
        "RuntimeError: a Tensor with 7 elements cannot be converted to Scalar",
    ],
    "coroutine-result": ["TypeError: 'coroutine' object is not subscriptable"],
    "future-as-result": [
        "AttributeError: '_AwaitableFutureCompatWrapper' object has no attribute 'sequences'"
    ],
    "client-future": ["AttributeError: '_APIFuture' object has no attribute 'sample'"],
    "checkpoint-gone": ["Error code: 404 - {'detail': 'Model weights at tinker://x have expired'}"],
    "home-made-timeout": [
        raised(
            '/home/me/a.py", line 3, in one',
            '/usr/lib/python3.11/asyncio/tasks.py", line 489, in wait_for',
            error="TimeoutError",
        ),
        raised(
            '/home/me/a.py", line 3, in one',
            '/usr/lib/python3.12/asyncio/timeouts.py", line 115, in __aexit__',
            error="TimeoutError",
        ),
        raised('/home/me/a.py", line 3, in one', error="concurrent.futures._base.TimeoutError"),
        "WARNING Retrying train.sample in 4.0 seconds as it raised APITimeoutException: .",
        "WARNING sampling timed out after 60s, attempt 2 of 5",
    ],
    "token-out-of-range": ["Error code: 400 - Token ID 201088 is out of vocabulary range"],
    "empty-datum": [
        "Error code: 400 - chunks must not be empty",
        "Error code: 400 - chunks[2]: tokens list is empty",
    ],
    "lora-config": ["Error code: 400 - rank 512 exceeds maximum 128 for this model"],
    "non-finite": ['{"step": 6, "loss": NaN}', "INFO step 6 loss=nan", "step 7 kl: -inf"],
    "out-of-memory": [
        "/bin/sh: line 1:  2133 Killed                  python train.py",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0",
    ],
    "event-loop": ["RuntimeError: got Future <Future pending> attached to a different loop"],
    "rate-limit-pause": ["Sampling for x is paused. Reason: concurrent samplers limit hit."],
    "template-mapping": ["TypeError: 'tokenizers.Encoding' object cannot be interpreted as int"],
    "key-refused": ['INFO HTTP Request: POST https://t/api/v1/sample "HTTP/2 401 Unauthorized"'],
}


@pytest.mark.parametrize(
    ("cause", "text"), [(cause, text) for cause, texts in VARIANTS.items() for text in texts]
)
def test_other_wordings_of_known_errors(cause: str, text: str) -> None:
    assert causes(text.splitlines()) == [cause]


def test_a_request_that_the_sdk_repeats_is_a_warning_until_it_raises() -> None:
    line = 'INFO HTTP Request: POST https://t/api/v1/asample "HTTP/1.1 503 Service Unavailable"'
    diagnosis = explain([line, "INFO step 4"])
    assert diagnosis.ok and [f.cause for f in diagnosis.findings] == ["server-error"]
    assert not explain([line, "tinker.InternalServerError: Error code: 503 - x"]).ok


HEALTHY = [
    'INFO HTTP Request: HEAD https://huggingface.co/a/b/resolve/main/x.json "HTTP/1.1 404 Not Found"',
    'INFO HTTP Request: POST https://t/api/v1/retrieve_future "HTTP/2 408 Request Timeout"',
    'config: {"behavior_if_log_dir_exists": "resume", "tokenizer_class": null, "timeout": 60}',
    "INFO sample: 'The server said 500 Internal Server Error, so the client must try again.'",
    'INFO reply: "Traceback (most recent call last): ..." reward 0.0',
    "INFO grader timed out after 5 seconds: reward 0",
    "WARNING sandbox: unit tests timed out after 30 s, reward 0",
    "INFO Saved checkpoint 000060; already exists on disk: config.json",
    "INFO max_tokens 256; context window 32768",
    "foo.py:3: DeprecationWarning: pkg_resources is deprecated as an API",
    "FutureWarning: `torch.load` with `weights_only=False`",
    "INFO loss: inf-norm clipped at 1.0, infinite=False",
    "INFO No checkpoints found in /tmp/x, starting from scratch",
    "Token indices sequence length is longer than the specified maximum (40000 > 32768).",
]


@pytest.mark.parametrize("line", HEALTHY)
def test_lines_of_healthy_logs(line: str) -> None:
    assert causes([line]) == []


def test_encodings_line_ends_and_progress_bars(tmp_path, monkeypatch, capsys) -> None:
    log = tmp_path / "a log.txt"
    bar = "".join(f"\r{i:3d}%|#### | {i}/100 [00:{i:02d}<01:10]" for i in range(100)) * 3
    log.write_bytes(f"{bar}\r{TRACEBACK[0]}\r\n".encode() + "\r\n".join(TRACEBACK[1:]).encode())
    assert explain_error.main([str(log)]) == 1
    assert "[checkpoint-exists]" in capsys.readouterr().out
    log.write_text("\n".join(TRACEBACK), encoding="utf-16")  # PowerShell's >
    assert explain_error.main([str(log)]) == 1
    log.write_bytes(b"caf\xe9 \xff step 3\n" * 3)
    assert explain_error.main([str(log)]) == 0
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe caf\xe9 fine\n")))
    assert explain_error.main(["-"]) == 0
    for content in (b"\x1f\x8b\x08\x08abc", bytes(range(128, 256)) * 9):
        log.write_bytes(content)
        with pytest.raises(InputError, match="binary"):
            explain_error.main([str(log)])


def test_a_log_without_an_error_that_is_written_no_more(tmp_path, capsys) -> None:
    log = tmp_path / "train.log"
    log.write_text("creating the training client\n")
    assert explain_error.main([str(log)]) == 0
    assert "task_dump.py attach" not in capsys.readouterr().out
    os.utime(log, (time.time() - 2400, time.time() - 2400))
    assert explain_error.main([str(log)]) == 0
    assert "for 40 minutes" in capsys.readouterr().out
