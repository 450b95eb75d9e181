"""The ASGI application: routes, authentication, errors."""

from __future__ import annotations

import logging

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tinkerlab.rehearsal.errors import ServiceError
from tinkerlab.rehearsal.service import (
    checkpoint_routes,
    future_routes,
    run_routes,
    sampling_routes,
    saving_routes,
    session_routes,
    training_routes,
)
from tinkerlab.rehearsal.service.faults import FaultMiddleware
from tinkerlab.rehearsal.service.http import reply
from tinkerlab.rehearsal.service.state import State

logger = logging.getLogger("tinkerlab.rehearsal")

API = "/api/v1"
# Routes of the hosted service that a rehearsal has nothing to answer with.
_UNSUPPORTED = ("/audit", "/billing", "/trace_export", "/unload_model")


def build_app(state: State) -> Starlette:
    """The service over ``state``."""
    routes = [
        Mount(
            API,
            routes=[
                *session_routes.ROUTES,
                *run_routes.ROUTES,
                *training_routes.ROUTES,
                *saving_routes.ROUTES,
                *sampling_routes.ROUTES,
                *future_routes.ROUTES,
                *checkpoint_routes.ROUTES,
            ],
        ),
        # Signed URLs, so outside the API and without a key.
        Route("/files/{directory}/{name:path}", checkpoint_routes.download_file, methods=["GET"]),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(FaultMiddleware, faults=state.faults), Middleware(RequireKey)],
        exception_handlers={
            ServiceError: _refusal,
            HTTPException: _no_route,
            Exception: _defect,
        },
    )
    app.state.rehearsal = state
    return app


class RequireKey:
    """Answers 401 to API requests without a key. Any key will do: nothing here is billed."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(f"{API}/"):
            key = dict(scope["headers"]).get(b"x-api-key", b"")
            if not key.startswith((b"tml-", b"eyJ")):
                message = "no valid API key in X-API-Key: set TINKER_API_KEY to tml-..."
                await reply({"detail": message}, 401)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceError)
    return reply({"detail": error.message}, error.status)


def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == 405:
        detail = f"{request.method} is not supported on {path}"
    elif any(part in path for part in _UNSUPPORTED):
        detail = f"{path} is not supported by the rehearsal"
    else:
        detail = f"no route {path}"
    return reply({"detail": detail}, error.status_code)


def _defect(request: Request, error: Exception) -> Response:
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return reply({"detail": f"{type(error).__name__}: {error}"}, 500)
