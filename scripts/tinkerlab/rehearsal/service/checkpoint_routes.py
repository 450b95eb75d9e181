"""Training runs and checkpoints: list, inspect, publish, expire, delete, copy, download."""

from __future__ import annotations

import hashlib
import hmac
import shutil
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route
from tinker import types

from tinkerlab.rehearsal.errors import Conflict, NotFound, Unauthorized, Unprocessable, UserError
from tinkerlab.rehearsal.service.checkpoints import EXTERNAL, SAMPLER, TRAINING, TYPES, check_ttl
from tinkerlab.rehearsal.service.http import page_of, read, read_json, reply, state_of
from tinkerlab.rehearsal.service.session_routes import OWNER, require_session
from tinkerlab.rehearsal.service.state import State

_URL_SECONDS = 3600
_COPY_SECONDS = 25.0


async def list_runs(request: Request) -> Response:
    state = state_of(request)
    offset, limit = page_of(request)
    rows = state.store.rows("runs", "ORDER BY created DESC LIMIT ? OFFSET ?", limit, offset)
    cursor = types.Cursor(offset=offset, limit=limit, total_count=state.store.count("runs"))
    runs = [_run(state, row) for row in rows]
    return reply(types.TrainingRunsResponse(training_runs=runs, cursor=cursor))


async def get_run(request: Request) -> Response:
    state = state_of(request)
    return reply(_run(state, state.runs.record(request.path_params["model_id"])))


async def list_run_checkpoints(request: Request) -> Response:
    state, model_id = state_of(request), request.path_params["model_id"]
    state.runs.record(model_id)
    checkpoints, _ = state.checkpoints.list(model_id)
    return reply(types.CheckpointsListResponse(checkpoints=checkpoints))


async def list_checkpoints(request: Request) -> Response:
    offset, limit = page_of(request, default=100)
    checkpoints, total = state_of(request).checkpoints.list(offset=offset, limit=limit)
    cursor = types.Cursor(offset=offset, limit=limit, total_count=total)
    return reply(types.CheckpointsListResponse(checkpoints=checkpoints, cursor=cursor))


async def delete_checkpoint(request: Request) -> Response:
    state_of(request).checkpoints.delete(_path(request))
    return reply({})


async def publish_checkpoint(request: Request) -> Response:
    state_of(request).checkpoints.publish(_path(request), public=request.method == "POST")
    return reply({})


async def set_ttl(request: Request) -> Response:
    body = await read_json(request)
    ttl = body.get("ttl_seconds")
    if "ttl_seconds" not in body or isinstance(ttl, bool) or not isinstance(ttl, (int, type(None))):
        raise Unprocessable("ttl_seconds must be a whole number of seconds, or null")
    state_of(request).checkpoints.set_ttl(_path(request), ttl)
    return reply({})


async def weights_info(request: Request) -> Response:
    path = (await read_json(request)).get("tinker_path")
    if not isinstance(path, str):
        raise Unprocessable("tinker_path must be a string")
    saved = state_of(request).checkpoints.get(path)
    return reply(
        types.WeightsInfoResponse(
            base_model=saved.base_model,
            is_lora=True,
            lora_rank=saved.lora["rank"],
            train_unembed=saved.lora["train_unembed"],
            train_mlp=saved.lora["train_mlp"],
            train_attn=saved.lora["train_attn"],
        )
    )


async def copy_weights(request: Request) -> Response:
    """Copy a checkpoint into a run of the given session, or into one named after its source."""
    body = await read(request, types.CopyWeightsRequest)
    state = state_of(request)
    # The SDK sends one key with every attempt at the same copy.
    request_id = f"copy:{request.headers.get('x-idempotency-key', uuid.uuid4().hex)}"
    if not state.futures.known(request_id):
        copy = _prepare_copy(state, body)
        if state.futures.begin(request_id):
            await run_in_threadpool(state.fulfil, request_id, copy)
    result = await state.futures.wait(request_id, _COPY_SECONDS)
    if result is None:
        raise Conflict("the copy is still in progress")
    return Response(result.body, media_type=result.content_type)


def _prepare_copy(state: State, body: types.CopyWeightsRequest) -> Callable[[], dict[str, Any]]:
    check_ttl(body.ttl_seconds)
    source = state.checkpoints.get(body.source_path)
    to_session = body.session_id is not None and body.model_seq_id is not None
    if to_session == (body.destination_project_id is not None):
        raise Unprocessable("send destination_project_id, or session_id with model_seq_id")
    if to_session:
        require_session(state, str(body.session_id))
        session_id, model_id = str(body.session_id), f"{body.session_id}:train:{body.model_seq_id}"
    else:
        session_id = f"copy-{time.time_ns():x}"
        model_id = f"{session_id}:train:0"
    run = {"base_model": source.base_model, "lora": source.lora}
    path = state.checkpoints.claim(model_id, source.kind, source.name)

    def copy() -> dict[str, Any]:
        now = time.time()
        try:
            state.store.insert(
                "runs",
                model_id=model_id,
                session_id=session_id,
                created=now,
                last_request=now,
                **run,
            )
            state.checkpoints.write(
                path,
                run,
                lambda folder: _copy_files(source.directory, folder),
                ttl_seconds=body.ttl_seconds,
            )
        finally:
            state.checkpoints.release(path)
        return {"tinker_path": path}

    return copy


async def archive(request: Request) -> Response:
    raise UserError(
        "checkpoint archives are not served (SDK 0.38 has no method for them): use"
        " save_weights_external and external_weights_urls, or tinker_cookbook.weights.download"
    )


async def external_weights_urls(request: Request) -> Response:
    """One URL per file, signed and short-lived, since they are fetched without a key."""
    state = state_of(request)
    saved = state.checkpoints.get(_path(request), kind=EXTERNAL, use="downloading files")
    expires = int(time.time()) + _URL_SECONDS
    files = sorted(p for p in saved.directory.rglob("*") if p.is_file())
    urls = {}
    for file in files:
        name = file.relative_to(saved.directory).as_posix()
        signature = _sign(state, saved.directory.name, name, expires)
        urls[name] = (
            f"{request.base_url}files/{saved.directory.name}/{quote(name)}"
            f"?expires={expires}&signature={signature}"
        )
    return reply(
        types.ExternalWeightsUrlsResponse(urls=urls, expires=datetime.fromtimestamp(expires, UTC))
    )


async def download_file(request: Request) -> Response:
    """Serve one exported file to the holder of a signed URL.

    Raises:
        Unauthorized: no valid signature, or it has expired.
        NotFound: the file is gone.
    """
    state = state_of(request)
    directory, name = request.path_params["directory"], request.path_params["name"]
    expires, signature = (request.query_params.get(key, "") for key in ("expires", "signature"))
    if not expires.isdigit() or not signature.isascii():
        raise Unauthorized("the download URL is not signed")
    valid = hmac.compare_digest(signature, _sign(state, directory, name, int(expires)))
    if not valid or int(expires) < time.time():
        raise Unauthorized("the download URL is not valid, or it has expired: ask for a new one")
    root = state.checkpoints.folder(directory).resolve()
    file = (root / name).resolve()
    if not file.is_relative_to(root) or not file.is_file():
        raise NotFound(f"no file {name}")
    return FileResponse(file)


def _sign(state: State, directory: str, name: str, expires: int) -> str:
    message = f"{directory}/{name}?{expires}".encode()
    return hmac.new(state.url_secret, message, hashlib.sha256).hexdigest()


def _path(request: Request) -> str:
    parameters = request.path_params
    kind = parameters["kind"]
    if kind not in TYPES:
        raise NotFound(f"no checkpoint kind {kind!r}: it is one of {', '.join(TYPES)}")
    return f"tinker://{parameters['model_id']}/{kind}/{parameters['name']}"


def _run(state: State, row: dict[str, Any]) -> types.TrainingRun:
    model_id, metadata = row["model_id"], row["user_metadata"]
    return types.TrainingRun(
        training_run_id=model_id,
        base_model=row["base_model"],
        model_owner=OWNER,
        is_lora=True,
        lora_rank=row["lora"]["rank"],
        last_request_time=datetime.fromtimestamp(row["last_request"], UTC),
        last_checkpoint=state.checkpoints.latest(model_id, TRAINING),
        last_sampler_checkpoint=state.checkpoints.latest(model_id, SAMPLER),
        user_metadata=None if metadata is None else {k: str(v) for k, v in metadata.items()},
    )


def _copy_files(source: Path, target: Path) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True)


_CHECKPOINT = "/training_runs/{model_id}/checkpoints/{kind}/{name}"

ROUTES = [
    Route("/training_runs", list_runs, methods=["GET"]),
    Route("/training_runs/{model_id}", get_run, methods=["GET"]),
    Route("/training_runs/{model_id}/checkpoints", list_run_checkpoints, methods=["GET"]),
    Route(_CHECKPOINT, delete_checkpoint, methods=["DELETE"]),
    Route(f"{_CHECKPOINT}/publish", publish_checkpoint, methods=["POST", "DELETE"]),
    Route(f"{_CHECKPOINT}/ttl", set_ttl, methods=["PUT"]),
    Route(f"{_CHECKPOINT}/archive", archive, methods=["GET"]),
    Route(f"{_CHECKPOINT}/external_weights_urls", external_weights_urls, methods=["GET"]),
    Route("/checkpoints", list_checkpoints, methods=["GET"]),
    Route("/weights_info", weights_info, methods=["POST"]),
    Route("/copy_weights", copy_weights, methods=["POST"]),
]
