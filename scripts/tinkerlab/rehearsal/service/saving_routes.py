"""Saving a run's weights: training state, sampler weights, files for the world outside."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tinker import types

from tinkerlab.rehearsal.errors import Unprocessable
from tinkerlab.rehearsal.service.checkpoints import EXTERNAL, SAMPLER, TRAINING, check_ttl
from tinkerlab.rehearsal.service.encryption import encrypt_folder
from tinkerlab.rehearsal.service.http import read, state_of
from tinkerlab.rehearsal.service.queueing import Work, enqueue
from tinkerlab.rehearsal.service.runs import Run
from tinkerlab.rehearsal.service.state import State


async def save_weights(request: Request) -> Response:
    body = await read(request, types.SaveWeightsRequest)
    return _save(
        state_of(request),
        body.model_id,
        body.seq_id,
        TRAINING,
        body.path or uuid.uuid4().hex,
        ttl_seconds=body.ttl_seconds,
        overwrite=body.overwrite,
        user_metadata=body.user_metadata,
    )


async def save_weights_external(request: Request) -> Response:
    body = await read(request, types.SaveWeightsExternalRequest)
    return _save(
        state_of(request),
        body.model_id,
        body.seq_id,
        EXTERNAL,
        body.path,
        ttl_seconds=body.ttl_seconds,
        recipients=body.age_encryption_recipients,
    )


async def save_weights_for_sampler(request: Request) -> Response:
    body = await read(request, types.SaveWeightsForSamplerRequest)
    state = state_of(request)
    if body.path is not None:
        return _save(
            state,
            body.model_id,
            body.seq_id,
            SAMPLER,
            body.path,
            ttl_seconds=body.ttl_seconds,
            user_metadata=body.user_metadata,
        )
    if body.sampling_session_seq_id is None:
        raise Unprocessable("path or sampling_session_seq_id is missing")
    return _save_ephemeral(state, body)


def _save(
    state: State,
    model_id: str,
    seq_id: int | None,
    kind: str,
    name: str,
    *,
    ttl_seconds: int | None,
    overwrite: bool = False,
    user_metadata: dict[str, str] | None = None,
    recipients: list[str] | None = None,
) -> Response:
    run = state.runs.live(model_id)
    claimed: list[str] = []

    def prepare() -> Work:
        check_ttl(ttl_seconds)
        path = state.checkpoints.claim(model_id, kind, name, overwrite=overwrite)
        claimed.append(path)

        def work(run: Run) -> dict[str, Any]:
            adapter = run.ready()

            def write(folder: Path) -> None:
                adapter.save(folder, with_optimizer=kind == TRAINING)
                if recipients is not None:
                    encrypt_folder(folder, recipients)

            state.checkpoints.write(
                path, run.record(), write, ttl_seconds=ttl_seconds, user_metadata=user_metadata
            )
            return {"path": path, "type": f"save_{_SAVE_TYPES[kind]}"}

        return work

    def release() -> None:
        for path in claimed:
            state.checkpoints.release(path)

    return enqueue(state, run, seq_id, prepare, release)


_SAVE_TYPES = {
    TRAINING: "weights",
    SAMPLER: "weights_for_sampler",
    EXTERNAL: "weights_external",
}


def _save_ephemeral(state: State, body: types.SaveWeightsForSamplerRequest) -> Response:
    """Save for a sampling client without a name: nothing is listed, one session samples it."""
    run = state.runs.live(body.model_id)
    session_id = run.model_id.split(":train:")[0]
    sampler_id = f"{session_id}:sample:{body.sampling_session_seq_id}"

    def work(run: Run) -> dict[str, Any]:
        adapter = run.ready()
        folder = state.checkpoints.write_unlisted(lambda to: adapter.save(to, with_optimizer=False))
        run.model.keep_adapter(folder, adapter.snapshot())
        if body.kind == "inflight":
            row = {"model_id": run.model_id, "directory": folder.name}
            if not state.store.insert("inflight", **row):
                state.store.update("inflight", "model_id", run.model_id, directory=folder.name)
        state.store.insert(
            "samplers",
            sampler_id=sampler_id,
            session_id=session_id,
            base_model=run.base_model,
            directory=folder.name,
            shared_with=run.model_id if body.kind == "inflight" else None,
            created=time.time(),
        )
        return {"type": "save_weights_for_sampler", "sampling_session_id": sampler_id}

    return enqueue(state, run, body.seq_id, lambda: work)


ROUTES = [
    Route("/save_weights", save_weights, methods=["POST"]),
    Route("/save_weights_for_sampler", save_weights_for_sampler, methods=["POST"]),
    Route("/save_weights_external", save_weights_external, methods=["POST"]),
]
