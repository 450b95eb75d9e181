"""Sessions, capabilities, configuration, identity, telemetry."""

from __future__ import annotations

import base64
import json
import time
import uuid
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tinker import types
from tinker.types.session_status import SessionActive

from tinkerlab.rehearsal.errors import Gone, NotFound, Unprocessable, UserError
from tinkerlab.rehearsal.service.http import page_of, read, read_json, reply, state_of
from tinkerlab.rehearsal.service.state import State

OWNER = "tml:user:rehearsal"
PROJECT = "rehearsal"
_FINISH_REASONS = ("success", "errored", "interrupted")
_TOKEN_SECONDS = 24 * 3600
# A session without a heartbeat for this long no longer counts as active; the SDK sends one
# every 10 s (tinker/lib/internal_client_holder.py).
_ACTIVE_SECONDS = 60


def require_session(state: State, session_id: str) -> dict[str, Any]:
    """The session's record.

    Raises:
        NotFound: no such session.
        Gone: it has finished.
    """
    row = state.store.one("sessions", "session_id", session_id)
    if row is None:
        raise NotFound(f"no session {session_id}")
    if row["finish"] is not None:
        raise Gone(f"session {session_id} has finished")
    return row


async def client_config(request: Request) -> Response:
    await read(request, types.ClientConfigRequest)
    return reply(state_of(request).client_config)


async def dynamic_config(request: Request) -> Response:
    await read(request, types.ClientConfigRequest)
    return reply(types.ClientDynamicConfigResponse(sample_cancel_enabled=True))


async def health(request: Request) -> Response:
    return reply(types.HealthResponse(status="ok"))


async def capabilities(request: Request) -> Response:
    models = [
        types.SupportedModel(
            model_name=model.name,
            max_context_length=model.base.context_length,
            trainable=True,
            sampleable=True,
        )
        for model in state_of(request).models.all()
    ]
    return reply(types.GetServerCapabilitiesResponse(supported_models=models))


async def auth_token(request: Request) -> Response:
    """Exchange the key for a token; the SDK reads its claims and never checks a signature."""
    now = int(time.time())
    claims = {
        "sub": OWNER,
        "org_id": "rehearsal",
        "email": "",
        "iss": "tinker-rehearsal",
        "iat": now,
        "exp": now + _TOKEN_SECONDS,
    }
    parts = (json.dumps(part).encode() for part in ({"alg": "none"}, claims))
    encoded = [base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts]
    return reply({"jwt": ".".join([*encoded, ""])})


async def own_key(request: Request) -> Response:
    if request.method == "DELETE":
        raise UserError("the rehearsal keeps no API keys, so there is none to delete")
    details = {
        "org_details": {"id": 0, "name": "rehearsal"},
        "user_details": {"id": 0, "name": "rehearsal", "email": "rehearsal@localhost"},
    }
    return reply({"key_id": 0, "name": "rehearsal", "note": "any key is taken", "details": details})


async def create_session(request: Request) -> Response:
    body = await read(request, types.CreateSessionRequest)
    session_id = str(uuid.uuid4())
    state_of(request).store.insert(
        "sessions",
        session_id=session_id,
        created=time.time(),
        tags=body.tags,
        user_metadata=body.user_metadata,
        display_name=body.display_name,
        project_id=body.project_id,
        sdk_version=body.sdk_version,
    )
    return reply(types.CreateSessionResponse(session_id=session_id))


async def heartbeat(request: Request) -> Response:
    body = await read(request, types.SessionHeartbeatRequest)
    state = state_of(request)
    require_session(state, body.session_id)
    state.heartbeats[body.session_id] = time.time()
    return reply(types.SessionHeartbeatResponse())


async def finish_session(request: Request) -> Response:
    state, session_id = state_of(request), request.path_params["session_id"]
    body = await read_json(request)
    reason = body.get("reason")
    if not isinstance(reason, dict) or reason.get("type") not in _FINISH_REASONS:
        raise Unprocessable(f"reason.type must be one of {', '.join(_FINISH_REASONS)}")
    row = state.store.one("sessions", "session_id", session_id)
    if row is None:
        raise NotFound(f"no session {session_id}")
    if row["finish"] is None:  # the first reason stays (tinker ServiceClient.close)
        detail = body.get("detail")
        finish = {"type": "client_finished", "reason": {"type": reason["type"]}, "detail": detail}
        state.store.update("sessions", "session_id", session_id, finish=finish)
    return reply({})


async def list_sessions(request: Request) -> Response:
    offset, limit = page_of(request)
    rows = state_of(request).store.rows(
        "sessions", "ORDER BY created DESC LIMIT ? OFFSET ?", limit, offset
    )
    return reply(types.ListSessionsResponse(sessions=[row["session_id"] for row in rows]))


async def get_session(request: Request) -> Response:
    store, session_id = state_of(request).store, request.path_params["session_id"]
    row = store.one("sessions", "session_id", session_id)
    if row is None:
        raise NotFound(f"no session {session_id}")
    runs = store.rows("runs", "WHERE session_id = ? ORDER BY created", session_id)
    samplers = store.rows("samplers", "WHERE session_id = ? ORDER BY created", session_id)
    return reply(
        types.GetSessionResponse(
            training_run_ids=[run["model_id"] for run in runs],
            sampler_ids=[sampler["sampler_id"] for sampler in samplers],
            user_metadata=_text_values(row["user_metadata"]),
            display_name=row["display_name"],
        )
    )


async def search_sessions(request: Request) -> Response:
    body = await read(request, types.SessionSearchRequest)
    state = state_of(request)
    found = [_summary(state, row) for row in state.store.rows("sessions", "ORDER BY created DESC")]
    found = [summary for summary in found if _matches(summary, body)]
    if body.cursor is not None:
        last = (body.cursor.last_created_at, body.cursor.last_session_id)
        found = [s for s in found if (s.created_at, s.session_id) < last]
    page, cursor = found[: body.limit], None
    if len(found) > len(page):
        cursor = types.SessionSearchCursor(
            last_created_at=page[-1].created_at, last_session_id=page[-1].session_id
        )
    return reply(types.SessionSearchResponse(sessions=page, next_cursor=cursor))


async def assign_project(request: Request) -> Response:
    state, session_id = state_of(request), request.path_params["session_id"]
    project_id = (await read_json(request)).get("project_id")
    if not isinstance(project_id, str) or not project_id:
        raise Unprocessable("project_id must be a non-empty string")
    if not state.store.update("sessions", "session_id", session_id, project_id=project_id):
        raise NotFound(f"no session {session_id}")
    return reply({})


async def telemetry(request: Request) -> Response:
    # Accepted and dropped: a rehearsal reports to nobody.
    await read_json(request)
    return reply(types.TelemetryResponse(status="accepted"))


def _summary(state: State, row: dict[str, Any]) -> types.SessionSummary:
    session_id = row["session_id"]
    status: Any = row["finish"]
    if status is None and time.time() - state.heartbeats.get(session_id, 0.0) < _ACTIVE_SECONDS:
        status = SessionActive()
    checkpoints = state.store.rows(
        "checkpoints",
        "WHERE model_id IN (SELECT model_id FROM runs WHERE session_id = ?)",
        session_id,
    )
    return types.SessionSummary(
        session_id=session_id,
        created_at=datetime.fromtimestamp(row["created"], UTC),
        owner=OWNER,
        project_id=row["project_id"] or PROJECT,
        status=status,
        checkpoints_count=len(checkpoints),
        display_name=row["display_name"],
        user_metadata=_text_values(row["user_metadata"]),
        checkpoint_storage_bytes=sum(checkpoint["size"] for checkpoint in checkpoints),
    )


def _matches(summary: types.SessionSummary, query: types.SessionSearchRequest) -> bool:
    if query.session_id is not None or query.display_name is not None:
        name = (summary.display_name or "").lower()
        words = (query.display_name or "").lower().split()
        by_name = bool(words) and all(word in name for word in words)
        if summary.session_id != query.session_id and not by_name:
            return False
    if query.project_ids is not None and summary.project_id not in query.project_ids:
        return False
    metadata = summary.user_metadata or {}
    if any(metadata.get(key) != value for key, value in query.user_metadata.items()):
        return False
    return query.statuses is None or any(_has_status(summary, s) for s in query.statuses)


def _has_status(summary: types.SessionSummary, wanted: Any) -> bool:
    if summary.status is None or summary.status.type != wanted.type:
        return False
    reasons = getattr(wanted, "reasons", None)
    return reasons is None or summary.status.reason.type in reasons  # type: ignore[union-attr]


def _text_values(metadata: dict[str, Any] | None) -> dict[str, str] | None:
    return None if metadata is None else {key: str(value) for key, value in metadata.items()}


ROUTES = [
    Route("/client/config", client_config, methods=["POST"]),
    Route("/client/dynamic_config", dynamic_config, methods=["POST"]),
    Route("/auth/token", auth_token, methods=["POST"]),
    Route("/auth/apikey/me", own_key, methods=["GET", "DELETE"]),
    Route("/healthz", health, methods=["GET"]),
    Route("/get_server_capabilities", capabilities, methods=["GET"]),
    Route("/create_session", create_session, methods=["POST"]),
    Route("/session_heartbeat", heartbeat, methods=["POST"]),
    Route("/telemetry", telemetry, methods=["POST"]),
    Route("/sessions", list_sessions, methods=["GET"]),
    Route("/sessions/search", search_sessions, methods=["POST"]),
    Route("/sessions/{session_id}", get_session, methods=["GET"]),
    Route("/sessions/{session_id}/finish", finish_session, methods=["POST"]),
    Route("/sessions/{session_id}/project", assign_project, methods=["PUT"]),
]
