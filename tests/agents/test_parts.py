"""Lines, redaction and the readable log by themselves."""

from __future__ import annotations

import io
import json

import pytest

from tinkerlab.agents.clis import AGENTS
from tinkerlab.agents.events import Transcript
from tinkerlab.agents.lines import bounded
from tinkerlab.agents.secrets import Redactor, agent_environment, left_out


class Drip(io.BytesIO):
    """A pipe that gives one byte at a time."""

    def read1(self, size: int | None = -1, /) -> bytes:
        return self.read(1)


@pytest.mark.parametrize("kind", [io.BytesIO, Drip])
@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"one\ntwo\n", [(b"one", 0), (b"two", 0)]),
        (b"one\n\ntwo", [(b"one", 0), (b"", 0), (b"two", 0)]),
        (b"123456789\nshort\n", [(b"12345", 4), (b"short", 0)]),
        (b"12345\n123456", [(b"12345", 0), (b"12345", 1)]),
    ],
)
def test_lines_are_bounded(kind, content: bytes, lines: list) -> None:
    assert list(bounded(kind(content), longest=5)) == lines


def test_a_secret_within_another_and_over_several_lines() -> None:
    redactor = Redactor({"SHORT": "abcdefgh", "LONG": "abcdefgh12345", "PEM": "line-one\nline-two"})
    assert redactor("x abcdefgh12345 y abcdefgh") == "x [LONG] y [SHORT]"
    assert redactor("line-two") == "[PEM]"
    assert redactor('{"text": "line-one\\nline-two"}') == '{"text": "[PEM]"}'
    # Keys of others are known by their looks.
    assert "0123456789" not in redactor("Bearer 0123456789abcdef0123")


def test_only_named_secrets_reach_the_agent() -> None:
    environment = {"PATH": "/bin", "A_TOKEN": "1", "db_password": "2", "PLAIN": "3", "KEEP": "4"}
    found = agent_environment({"A_TOKEN": "1"}, environment)
    assert {name: found.get(name) for name in ("A_TOKEN", "db_password", "PLAIN")} == {
        "A_TOKEN": "1",
        "db_password": None,
        "PLAIN": "3",
    }
    assert found["PATH"].endswith(":/bin") and found["PATH"] != ":/bin"
    assert left_out(["A_TOKEN"], environment) == ["db_password"]


CODEX = [
    {"type": "thread.started", "thread_id": "1"},
    {"type": "error", "message": "Reconnecting... 1/5"},
    {
        "type": "item.completed",
        "item": {"type": "command_execution", "command": "ls", "aggregated_output": "a\nb"},
    },
    {"type": "item.completed", "item": {"type": "agent_message", "text": "Done."}},
    {"type": "turn.completed", "usage": {"input_tokens": 3}},
]


def test_codex_events() -> None:
    transcript = Transcript()
    shown = [line for event in CODEX for line in transcript.read(json.dumps(event))]
    assert shown == ["! Reconnecting... 1/5", "> ls", "< a  (+1 lines)", "Done."]
    # What it reported before it was done was no failure after all.
    assert transcript.finished and transcript.error == "" and transcript.turns == 1
    transcript.read(json.dumps({"type": "turn.failed", "error": {"message": "out of credit"}}))
    assert transcript.error == "out of credit"


def test_a_message_is_shown_in_part() -> None:
    text = "\n".join(f"line {number}" for number in range(100))
    event = {"type": "assistant", "message": {"content": [{"type": "text", "text": text}]}}
    shown = Transcript().read(json.dumps(event))
    assert len(shown) == 30 and shown[-1] == "line 29  (+70 lines)"


def test_codex_reads_its_task_from_stdin_and_has_a_network() -> None:
    command = AGENTS["codex"].command(None, ["--model", "x"])
    assert command[:3] == ["codex", "exec", "--json"] and command[-3:] == ["-", "--model", "x"]
    assert "sandbox_workspace_write.network_access=true" in command
