"""The lab's fixture, and the table that it prints at the end of a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_lab import Lab


@pytest.fixture
def lab(tmp_path: Path, start_rehearsal, monkeypatch, record_property) -> Iterator[Lab]:
    lab = Lab(tmp_path, start_rehearsal, monkeypatch, record_property)
    yield lab
    # What a case started must outlive its function: the script looks at it afterwards.
    for stop in reversed(lab.at_end):
        stop()


def _rows(terminalreporter: Any) -> Iterator[dict[str, Any]]:
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", []):
                if name == "lab" and getattr(report, "when", "") == "call":
                    yield value


def pytest_terminal_summary(terminalreporter: Any) -> None:
    rows = sorted(_rows(terminalreporter), key=lambda row: (row["script"], row["name"]))
    if not rows:
        return
    faults = [row for row in rows if row["expects"] is not None]
    controls = [row for row in rows if row["expects"] is None]
    diagnosed = [row for row in faults if row["expects"] in row["said"]]
    accused = [row for row in controls if row["said"]]
    write = terminalreporter.write_line
    terminalreporter.section("fault lab")
    for row in rows:
        said = ", ".join(row["said"]) or "nothing"
        write(f"{row['script']}: {row['name'].replace('_', ' ')}")
        write(f"    produced: {row['produced']}")
        write(f"    expected: {row['expects'] or 'nothing (healthy)'}; said: {said}")
    if faults:
        write(f"diagnosed: {len(diagnosed)} of {len(faults)} faults")
    if controls:
        write(f"falsely accused: {len(accused)} of {len(controls)} healthy controls")
