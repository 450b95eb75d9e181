"""The lab counts honestly: a case that breaks down, or accuses wrongly, is not diagnosed."""

from __future__ import annotations

from typing import Any

import pytest
from fault_lab import Lab, Look, fault, healthy


def outcome(decorate: Any, produce: Any, tmp_path, monkeypatch) -> dict[str, Any]:
    recorded: list[dict[str, Any]] = []
    lab = Lab(tmp_path, lambda **_: None, monkeypatch, lambda _, row: recorded.append(row))
    with pytest.raises(Exception, match=r"."):
        decorate(produce)(lab)
    (row,) = recorded
    return row


def test_a_case_that_breaks_down_is_counted(tmp_path, monkeypatch) -> None:
    def broken(lab: Lab) -> Look:
        raise OSError("no disk")

    row = outcome(fault("explain_error.py", "billing", produced="x"), broken, tmp_path, monkeypatch)
    assert row["said"] == ["(broke down)"]


def test_a_script_that_refuses_its_input_is_counted(tmp_path, monkeypatch) -> None:
    def refused(lab: Lab) -> Look:
        return Look([lab.write("empty.log", "")])

    row = outcome(
        fault("explain_error.py", "billing", produced="x"), refused, tmp_path, monkeypatch
    )
    assert row["said"] == ["(broke down)"]


def test_another_cause_than_the_expected_one_fails(tmp_path, monkeypatch) -> None:
    def other(lab: Lab) -> Look:
        return Look(["tinker.RateLimitError: Error code: 429"])

    row = outcome(fault("explain_error.py", "billing", produced="x"), other, tmp_path, monkeypatch)
    assert row["said"] == ["rate-limited"]


def test_an_accused_control_fails(tmp_path, monkeypatch) -> None:
    def accused(lab: Lab) -> Look:
        return Look(["Training for x is paused. Reason: short on capacity."])

    row = outcome(healthy("explain_error.py", produced="x"), accused, tmp_path, monkeypatch)
    assert row["said"] == ["capacity-pause"]
