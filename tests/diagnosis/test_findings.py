"""A diagnosis: verdict first, problems decide the exit code, nothing checked is no verdict."""

from __future__ import annotations

import json

import pytest

from tinkerlab.diagnosis.findings import Diagnosis, Finding
from tinkerlab.diagnosis.reporting import report
from tinkerlab.errors import InputError

PROBLEM = Finding(
    "stale-sampler",
    "samples come from old weights",
    where="train.py:12",
    evidence=("made at line 4",),
    fix="make a new one",
    then="python train.py",
)
WARNING = Finding("short-ttl", "expires in an hour", severity="warning")


@pytest.mark.parametrize(
    ("findings", "code", "verdict"),
    [
        ([], 0, "OK: all is well"),
        ([WARNING], 0, "WARNING: expires in an hour"),
        ([WARNING, PROBLEM], 1, "PROBLEM: samples come from old weights (and 1 more)"),
    ],
)
def test_verdict_and_exit_code(findings, code, verdict, capsys):
    diagnosis = Diagnosis("all is well", {"files": 1}, findings)
    assert report(diagnosis, as_json=False) == code
    assert capsys.readouterr().out.splitlines()[0] == verdict
    assert report(diagnosis, as_json=True) == code
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == verdict
    assert [found["cause"] for found in document["findings"]] == [f.cause for f in findings]


def test_text_shows_evidence_fix_and_next_step_problems_first(capsys):
    report(Diagnosis("", {"tensors_read": 1200}, [WARNING, PROBLEM], ["a fact"]), as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "PROBLEM: samples come from old weights (and 1 more)",
        "checked: 1,200 tensors read",
        "",
        "problem [stale-sampler] train.py:12: samples come from old weights",
        "    seen: made at line 4",
        "    fix: make a new one",
        "    next: python train.py",
        "",
        "warning [short-ttl] expires in an hour",
        "",
        "note: a fact",
    ]


@pytest.mark.parametrize("checked", [{}, {"steps": 0}])
def test_a_diagnosis_of_nothing_is_refused(checked):
    with pytest.raises(InputError, match="nothing was checked"):
        report(Diagnosis("all is well", checked), as_json=False)


def test_keys_in_evidence_are_blanked(capsys):
    leaky = Finding("x", "w", evidence=("tml-abcdefghijkl",))
    report(Diagnosis("", {"files": 1}, [leaky]), as_json=True)
    report(Diagnosis("", {"files": 1}, [leaky]), as_json=False)
    assert "abcdefghijkl" not in capsys.readouterr().out
