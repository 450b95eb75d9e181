"""Retrieving results of every kind, and cancelling what is still running."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tinker import types
from tinker.types.try_again_response import TryAgainResponse

from tinkerlab.rehearsal.errors import Unprocessable
from tinkerlab.rehearsal.service.http import read, read_json, reply, require_finite, state_of

# The SDK gives a poll 45 s (tinker/lib/api_future_impl.py, session_futures_poller.py).
_LONG_POLL_SECONDS = 25.0
_PAUSE_POLL_SECONDS = 1.0


async def cancel_future(request: Request) -> Response:
    request_id = (await read_json(request)).get("request_id")
    if not isinstance(request_id, str):
        raise Unprocessable("request_id must be a string")
    running = state_of(request).sampling.get(request_id)
    if running is not None:
        model, future = running
        model.sampler.cancel(future)
    return reply({})


async def retrieve_future(request: Request) -> Response:
    body = await read(request, types.FutureRetrieveRequest)
    state = state_of(request)
    if state.faults.paused(request.url.path):
        await asyncio.sleep(_PAUSE_POLL_SECONDS)
        return _try_again(body.request_id, "paused_capacity")
    result = await state.futures.wait(body.request_id, _LONG_POLL_SECONDS)
    if result is None:
        return _try_again(body.request_id, "active")
    return Response(result.body, media_type=result.content_type)


def _try_again(request_id: str, queue_state: Any) -> Response:
    return reply(TryAgainResponse(request_id=request_id, queue_state=queue_state))


async def retrieve_futures(request: Request) -> Response:
    body = await read(request, types.FuturesRetrieveRequest)
    state = state_of(request)
    require_finite(timeout=body.timeout)
    timeout = _LONG_POLL_SECONDS if body.timeout is None else body.timeout
    group = f"{body.target.sampling_session_id}:{body.target.cloned_sampler_id}"
    completed = await state.futures.wait_group(
        group, body.prev_cursor, min(timeout, _LONG_POLL_SECONDS)
    )
    completions: list[dict[str, Any]] = []
    for _, request_id, outcome, size in completed:
        completion: dict[str, Any] = {"state": outcome, "request_id": request_id}
        if outcome == "finished":
            completion["response_payload_uncompressed_size"] = size
        completions.append(completion)
    cursor = completed[-1][0] if completed else body.prev_cursor
    return reply({"completions": completions, "cursor": cursor})


ROUTES = [
    Route("/retrieve_future", retrieve_future, methods=["POST"]),
    Route("/retrieve_futures", retrieve_futures, methods=["POST"]),
    Route("/cancel_future", cancel_future, methods=["POST"]),
]
