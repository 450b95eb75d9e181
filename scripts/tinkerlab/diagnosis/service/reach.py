"""The address itself: does anything answer, and how fast. No SDK, no key."""

from __future__ import annotations

import socket
import ssl
import statistics
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field

from tinkerlab.diagnosis.environment.machine import without_password
from tinkerlab.diagnosis.findings import Finding

TIMEOUT_SECONDS = 10.0
ROUNDS = 5
# A poll is answered at once when a result is there: above this, every step loses as much.
SLOW_SECONDS = 2.0


@dataclass
class Reach:
    """What the address said.

    Attributes:
        round_trips: seconds of each request that was answered.
    """

    answered: bool = False
    round_trips: list[float] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def median(self) -> float | None:
        return statistics.median(self.round_trips) if self.round_trips else None


def reach(base_url: str) -> Reach:
    """Ask the service's health page five times."""
    found = Reach()
    url = f"{base_url}/api/v1/healthz"
    base_url = without_password(base_url)
    for _ in range(ROUNDS):
        started = time.monotonic()
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS):  # noqa: S310
                pass
        except urllib.error.HTTPError as error:
            # Any answer is one of the service, or of what stands before it.
            if error.code >= 500:
                found.findings = [_failing(base_url, error.code)]
        except (OSError, ValueError) as error:
            found.findings = [_unreachable(base_url, error)]
            return found
        found.round_trips.append(time.monotonic() - started)
    found.answered = True
    found.findings += _slow(base_url, found.median or 0.0)
    return found


def _unreachable(base_url: str, error: BaseException) -> Finding:
    reason = getattr(error, "reason", error)
    if isinstance(reason, socket.gaierror):
        what = "the host's name can't be resolved: no network, a wrong name, or a DNS fault"
    elif isinstance(reason, ssl.SSLError):
        what = "the encrypted connection fails: a proxy in between, or an old certificate store"
    elif isinstance(reason, ConnectionRefusedError):
        what = "nobody listens at that address"
    elif isinstance(reason, TimeoutError):
        what = (
            f"no answer within {TIMEOUT_SECONDS:.0f} s: a firewall, a proxy, or the service is down"
        )
    else:
        what = "the connection fails"
    return Finding(
        "service-unreachable",
        f"the service can't be reached: {what}",
        where=base_url,
        evidence=(" ".join(str(reason).split()),),
        fix="check TINKER_BASE_URL, the network and the proxy; training scripts would repeat this"
        " for five minutes and look hung",
    )


def _failing(base_url: str, code: int) -> Finding:
    return Finding(
        "service-failing",
        f"the service answers with HTTP {code}",
        where=base_url,
        fix="wait and look again; runs that were interrupted resume from their newest checkpoint",
    )


def _slow(base_url: str, median: float) -> Iterator[Finding]:
    if median > SLOW_SECONDS:
        yield Finding(
            "slow-round-trip",
            f"a request takes {median:.1f} s there and back (median of {ROUNDS})",
            where=base_url,
            evidence=("each wait between two submits costs as much",),
            fix="run the loop nearer to the service, look at the proxy, and submit ahead",
            then="python scripts/check_pipelining.py train.py",
            severity="warning",
        )
