"""Observes the SDK's requests: when each is submitted, from which line, and when it is done.

Three methods are wrapped when their module is imported, each only if it is there (checked with
tinker 0.38): ``InternalClientHolder.run_coroutine_threadsafe``, through which every public call
reaches the SDK's loop; ``httpx.AsyncClient.send``, for requests to ``/api/v1/``; and
``on_queue_state_change``, which hears that a request is paused. They record and pass on.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

HOLDER = "tinker.lib.internal_client_holder"
PUBLIC = "/lib/public_interfaces/"
STDLIB = str(Path(os.__file__).parent)


class Requests:
    """Records submissions and their ends."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._count = 0
        self._ids: set[int] = set()
        self._prompt: list[int] = []
        self.package = ""

    @property
    def open(self) -> int:
        """How many requests are in flight."""
        return len(self._ids)

    def note(self, text: str) -> None:
        self._recorder.put("note", text=text)

    def submitted(self, future: Any) -> None:
        """A call reached the SDK's loop; ``future`` is what its caller will wait for."""
        _, thread = sdk_thread()
        public, caller = _caller(sys._getframe(2), self.package, getattr(thread, "ident", None))
        if public is None:
            return
        method = getattr(public.f_code, "co_qualname", public.f_code.co_name).split(".<locals>")[0]
        self._count += 1
        number = self._count
        self._ids.add(number)
        at = [caller.f_code.co_filename, caller.f_lineno, caller.f_code.co_name] if caller else None
        extends = self._extends(public.f_locals.get("prompt")) if "Sampling" in method else False
        self._recorder.put("submit", id=number, method=method, at=at, extends=extends)
        future.add_done_callback(lambda done: self._done(number, done))

    def _extends(self, prompt: Any) -> bool:
        """Whether a prompt goes on where the last one ended: the next turn of a conversation."""
        ids = prompt.to_ints() if hasattr(prompt, "to_ints") else []
        before, self._prompt = self._prompt, ids
        return 0 < len(before) < len(ids) and ids[: len(before)] == before

    def _done(self, number: int, future: Any) -> None:
        self._ids.discard(number)
        error = None
        if not future.cancelled() and future.exception() is not None:
            error = type(future.exception()).__name__
        self._recorder.put("done", id=number, error=error)

    def wrap_submit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def run_coroutine_threadsafe(holder: Any, coro: Any) -> Any:
            result = original(holder, coro)
            # The user's call has been made: whatever goes wrong from here on is ours alone.
            try:
                self.submitted(result.future())
            except Exception as error:
                self.note(f"a submission was not seen: {error!r}")
            return result

        return run_coroutine_threadsafe

    def wrap_send(self, original: Callable[..., Any]) -> Callable[..., Any]:
        put = self._recorder.put

        @functools.wraps(original)
        async def send(client: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            path = request.url.path
            if "/api/v1/" not in path:
                return await original(client, request, *args, **kwargs)
            started = time.monotonic()
            status = error = None
            try:
                response = await original(client, request, *args, **kwargs)
                status = response.status_code
                return response
            except BaseException as raised:
                error = type(raised).__name__
                raise
            finally:
                seconds = round(time.monotonic() - started, 4)
                put("http", path=path, seconds=seconds, status=status, error=error)

        return send

    def wrap_queue(self, original: Callable[..., Any]) -> Callable[..., Any]:
        put = self._recorder.put

        @functools.wraps(original)
        def on_queue_state_change(observer: Any, queue_state: Any, reason: Any = None) -> Any:
            state = getattr(queue_state, "value", str(queue_state))
            if state != "active":
                put("queue", state=state, reason=reason)
            return original(observer, queue_state, reason)

        return on_queue_state_change


def _caller(frame: Any, package: str, sdk_thread: int | None) -> tuple[Any, Any]:
    """The frame of the public method that is called, and the one outside of the SDK that calls it.

    (None, None) for the SDK's own business: heartbeats, polling, closing a client.
    """
    public = None
    while frame is not None:
        filename = frame.f_code.co_filename
        if filename.startswith(package):
            if PUBLIC in filename.replace("\\", "/"):
                public = frame
        elif not _stdlib(filename):
            return (public, frame) if public else (None, None)
        frame = frame.f_back
    # No caller: a thread pool's call, or the SDK's own task on its own loop.
    return (None if threading.get_ident() == sdk_thread else public), None


def _stdlib(filename: str) -> bool:
    """True for the standard library and generated code, which stand between real frames."""
    return filename.startswith("<") or (
        filename.startswith(STDLIB) and "site-packages" not in filename
    )


def library(filename: str) -> bool:
    return _stdlib(filename) or "site-packages" in filename


def sdk_thread() -> tuple[Any, Any]:
    """The SDK's event loop and its thread; (None, None) before the first client."""
    module = sys.modules.get(HOLDER)
    singleton = getattr(module, "_internal_client_holder_thread_singleton", None)
    return getattr(singleton, "_loop", None), getattr(singleton, "_thread", None)


def _patch_holder(module: Any, requests: Requests) -> None:
    requests.package = str(Path(module.__file__).parents[1])
    requests.note("sdk imported")
    _wrap(module, "InternalClientHolder", "run_coroutine_threadsafe", requests.wrap_submit)
    _wrap(sys.modules.get("httpx"), "AsyncClient", "send", requests.wrap_send)


def _patch_queue(module: Any, requests: Requests) -> None:
    for owner in ("QueueStateLogger", "SamplingClient"):
        if hasattr(module, owner):
            _wrap(module, owner, "on_queue_state_change", requests.wrap_queue)


def _wrap(module: Any, owner: str, name: str, wrap: Callable[..., Any]) -> None:
    """Wrap a method; an SDK that has none raises AttributeError, which the caller notes."""
    target = getattr(module, owner)
    setattr(target, name, wrap(getattr(target, name)))


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the real finders find the SDK's modules, and patches them once they have run."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._patches = {
            HOLDER: _patch_holder,
            "tinker.lib.queue_state_logger": _patch_queue,
            "tinker.lib.public_interfaces.sampling_client": _patch_queue,
        }

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        patch = self._patches.pop(fullname, None)
        if patch is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            try:
                patch(module, self._requests)
            except Exception as error:
                self._requests.note(f"not observed: {fullname}: {error!r}")

        spec.loader.exec_module = exec_module
        return spec


def install(requests: Requests) -> None:
    sys.meta_path.insert(0, _Finder(requests))
