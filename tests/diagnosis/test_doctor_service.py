"""doctor.py and the service: each way of not answering is told apart, and none hangs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest
from refusing_server import refusing_server
from repository import ROOT

import doctor
from tinkerlab.diagnosis.service import reach as reach_module
from tinkerlab.diagnosis.service.deadline import TookTooLong, within
from tinkerlab.diagnosis.service.reach import reach
from tinkerlab.errors import InputError


def causes(findings) -> list[str]:
    return [finding.cause for finding in findings]


def test_a_dead_address_is_told_at_once() -> None:
    found = reach("http://127.0.0.1:9")
    assert causes(found.findings) == ["service-unreachable"]
    assert "nobody listens" in found.findings[0].what


def test_an_unknown_host() -> None:
    (finding,) = reach("http://no-such-host.invalid").findings
    assert finding.cause == "service-unreachable"


def test_a_service_that_fails_and_one_that_is_slow(monkeypatch) -> None:
    with refusing_server(500, healthz=503) as url:
        assert causes(reach(url).findings) == ["service-failing"]
    monkeypatch.setattr(reach_module, "SLOW_SECONDS", 0.05)
    with refusing_server(200, delay=0.1) as url:
        assert causes(reach(url).findings) == ["slow-round-trip"]


def test_one_that_never_answers(monkeypatch) -> None:
    monkeypatch.setattr(reach_module, "TIMEOUT_SECONDS", 0.2)
    with refusing_server(200, delay=1.0) as url:
        (finding,) = reach(url).findings
    assert finding.cause == "service-unreachable" and "no answer" in finding.what


def examine(env: dict[str, str], *arguments: str) -> tuple[int, dict]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/doctor.py"), "--json", *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        (401, "key-refused"),
        (402, "billing"),
        (403, "no-access"),
        (400, "service-refuses"),
        (404, "not-a-tinker-service"),
        (500, "service-failing"),
    ],
)
def test_refusals_are_told_apart(status: int, cause: str) -> None:
    with refusing_server(status) as url:
        env = {**os.environ, "TINKER_BASE_URL": url, "TINKER_API_KEY": "tml-abcdefghijkl"}
        code, document = examine(env, "--timeout", "4")
    assert (code, [f["cause"] for f in document["findings"]]) == (1, [cause])


def test_a_rehearsal_is_healthy_and_its_model_can_be_trained(rehearsal) -> None:
    code, document = examine(rehearsal.env, "--model", rehearsal.model)
    assert (code, document["findings"]) == (0, [])
    assert document["round_trip_seconds"] < 1
    assert any("training client" in note for note in document["notes"])
    assert [row["name"] for row in document["models"]] == [rehearsal.model]


def test_a_model_that_is_not_served_names_the_nearest(rehearsal) -> None:
    code, document = examine(rehearsal.env, "--model", "tiny:lama")
    assert code == 1
    (finding,) = document["findings"]
    assert finding["cause"] == "model-not-served"
    assert "tiny:llama" in finding["evidence"][0]


def test_within_gives_results_errors_and_deadlines() -> None:
    assert within(5, lambda: 3) == 3
    with pytest.raises(KeyError):
        within(5, lambda: {}["x"])
    with pytest.raises(TookTooLong):
        within(0.1, lambda: time.sleep(5))


def test_offline_asks_nobody(monkeypatch, capsys) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-abcdefghijkl")
    monkeypatch.setenv("TINKER_BASE_URL", "http://127.0.0.1:9")
    assert doctor.main(["--offline", "--json"]) == 0
    assert "requests" not in json.loads(capsys.readouterr().out)["checked"]


def test_nonsense_is_refused() -> None:
    with pytest.raises(InputError, match="--create-timeout"):
        doctor.main(["--create-timeout", "-1"])
