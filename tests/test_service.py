"""Connecting to a service: waiting is not reported as a fault, faults are."""

from __future__ import annotations

import logging

import pytest

from tinkerlab import service


def test_the_sdks_word_for_waiting_is_dropped_and_no_other(rehearsal, monkeypatch, caplog) -> None:
    monkeypatch.setenv("TINKER_BASE_URL", rehearsal.base_url)
    monkeypatch.setenv("TINKER_API_KEY", "tml-rehearsal")
    for _ in range(2):  # a second connection adds nothing
        service.connect("test", {}).close("success").result()
    sdk = logging.getLogger("tinker.lib.api_future_impl")
    assert sdk.filters.count(service._is_news) == 1
    with caplog.at_level(logging.WARNING):
        sdk.warning("Retrying request self.request_id='r' because of try_again")
        sdk.warning("something new")
    assert [record.getMessage() for record in caplog.records if record.name == sdk.name] == [
        "something new"
    ]


def test_the_installed_sdk_still_words_it_so() -> None:
    import inspect

    from tinker.lib import api_future_impl

    assert "because of try_again" in inspect.getsource(api_future_impl)


def test_a_long_refusal_is_cut_to_one_line() -> None:
    assert len(service.brief(ValueError("x " * 500))) == 300
    assert service.brief(ValueError("a\n  b")) == "a b"
    assert service.brief(ValueError()) == "ValueError"


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://no-such-host.invalid"])
def test_a_dead_address_is_refused_at_once(url: str, monkeypatch) -> None:
    from tinkerlab.errors import InputError

    monkeypatch.setenv("TINKER_BASE_URL", url)
    with pytest.raises(InputError, match="does not answer"):
        service.require_reachable(url)
