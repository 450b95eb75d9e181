"""Faults on purpose: each makes the service misbehave the way the hosted one can.

A fault is written ``KIND[:ARG[,ARG...]]``. An ARG is a duration (``200ms``, ``5s``), a count
(``3x``: the first three matching requests), a share (``10%`` of them), or ``on=ROUTE``, a part
of the path that a request must contain, or of what it polls for (``on=Sample``: the SDK says so
in a header). Without a count or a share every request matches.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tinkerlab.errors import InputError


@dataclass(frozen=True)
class Kind:
    """One kind of fault: what it does, and which requests it strikes unless told otherwise."""

    effect: str
    on: str
    seconds: float = 0.0


KINDS = {
    "latency": Kind("adds a delay before each request is handled", "/api/v1/", 0.2),
    "429": Kind("answers 429, too many requests", "/asample"),
    "500": Kind("answers 500", "/forward_backward"),
    "504": Kind("answers 504, a gateway's timeout", "/retrieve_future"),
    "drop": Kind(
        "does what was asked, then closes the connection in the middle of the reply",
        "/retrieve_future",
    ),
    "capacity": Kind(
        "holds results back with queue_state paused_capacity", "/retrieve_future", 60.0
    ),
    "session-expiry": Kind("answers 410 once the service has run this long", "/api/v1/", 60.0),
    "corrupt": Kind("damages the bytes of the reply", "/retrieve_future"),
    "slow-create": Kind("delays the creation of a training client", "/create_model", 60.0),
}

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s)")
_COUNT = re.compile(r"(\d+)x")
_SHARE = re.compile(r"(\d+(?:\.\d+)?)%")

# What a finished or expired session may still call, so that clients can start and say goodbye.
_OUTSIDE_SESSIONS = ("/client/", "/auth/", "/create_session", "/healthz", "/telemetry", "/finish")


@dataclass
class Fault:
    """A fault and how often it has struck."""

    kind: str
    on: str
    seconds: float
    count: int | None = None
    share: float = 1.0
    struck: int = 0
    began: float | None = None
    _chance: random.Random = field(default_factory=lambda: random.Random(0))  # noqa: S311

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Read ``KIND[:ARG[,ARG...]]``.

        Raises:
            InputError: an unknown kind or argument.
        """
        name, _, rest = text.partition(":")
        kind = KINDS.get(name)
        if kind is None:
            raise InputError(f"--fault {text}: no fault {name!r}; choose from {', '.join(KINDS)}")
        fault = cls(kind=name, on=kind.on, seconds=kind.seconds)
        for argument in filter(None, rest.split(",")):
            if match := _DURATION.fullmatch(argument):
                fault.seconds = float(match[1]) / (1000 if match[2] == "ms" else 1)
            elif match := _COUNT.fullmatch(argument):
                fault.count = int(match[1])
            elif (match := _SHARE.fullmatch(argument)) and float(match[1]) <= 100:
                fault.share = float(match[1]) / 100
            elif argument.startswith("on=") and len(argument) > 3:
                fault.on = argument[3:]
            else:
                raise InputError(
                    f"--fault {text}: {argument!r} is no duration (200ms, 5s), count (3x), share"
                    " (10%) or on=ROUTE"
                )
        return fault

    def strikes(self, path: str) -> bool:
        """Whether this fault hits a request for ``path``; counts it when it does."""
        if self.on not in path or (self.count is not None and self.struck >= self.count):
            return False
        if self.share < 1 and self._chance.random() >= self.share:
            return False
        self.struck += 1
        return True


class Faults:
    """The faults of one service."""

    def __init__(self, faults: list[Fault], clock: Callable[[], float] = time.monotonic) -> None:
        self._faults = faults
        self._clock = clock
        self._started = clock()

    def __bool__(self) -> bool:
        return bool(self._faults)

    def of_kind(self, *kinds: str) -> list[Fault]:
        return [fault for fault in self._faults if fault.kind in kinds]

    def striking(self, path: str, *kinds: str) -> Fault | None:
        """The first fault of these kinds that hits a request for ``path``."""
        return next((fault for fault in self.of_kind(*kinds) if fault.strikes(path)), None)

    def paused(self, path: str) -> bool:
        """Whether a capacity pause holds results back now: from the first request that it
        hits, for its duration."""
        for fault in self.of_kind("capacity"):
            if fault.on not in path:
                continue
            if fault.began is None:
                fault.struck, fault.began = 1, self._clock()
            if self._clock() - fault.began < fault.seconds:
                return True
        return False

    def expired(self, path: str) -> bool:
        if any(part in path for part in _OUTSIDE_SESSIONS):
            return False
        age = self._clock() - self._started
        return any(f.on in path and age >= f.seconds for f in self.of_kind("session-expiry"))


class FaultMiddleware:
    """Strikes requests before they reach the service, and replies before they leave it."""

    def __init__(self, app: ASGIApp, faults: Faults) -> None:
        self._app = app
        self._faults = faults

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._faults:
            await self._app(scope, receive, send)
            return
        polled = dict(scope["headers"]).get(b"x-tinker-request-type", b"").decode("latin-1")
        path = f"{scope['path']}#{polled}"
        for fault in self._faults.of_kind("latency", "slow-create"):
            if fault.strikes(path):
                await asyncio.sleep(fault.seconds)
        if self._faults.expired(path):
            await _reply(send, 410, b'{"detail":"The session has expired."}')
        elif fault := self._faults.striking(path, "429", "500", "504"):
            detail = f'{{"detail":"fault {fault.kind}, injected by the rehearsal"}}'
            await _reply(send, int(fault.kind), detail.encode())
        elif self._faults.striking(path, "drop"):
            await self._app(scope, receive, _discard)
            # A promised body that never comes makes the server close the connection.
            await send(_start(200, 1024))
        elif self._faults.striking(path, "corrupt"):
            await self._app(scope, receive, _Corrupting(send).send)
        else:
            await self._app(scope, receive, send)


class _Corrupting:
    """Flips the reply's bits, leaving status, headers and length as they were."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            body = bytes(byte ^ 0xFF for byte in message.get("body", b""))
            message = {**message, "body": body}
        await self._send(message)


async def _discard(message: Message) -> None:
    pass


def _start(status: int, length: int) -> Message:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(length).encode())]
    return {"type": "http.response.start", "status": status, "headers": headers}


async def _reply(send: Send, status: int, body: bytes) -> None:
    await send(_start(status, len(body)))
    await send({"type": "http.response.body", "body": body})
