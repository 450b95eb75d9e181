"""Training: create a run, forward_backward, optim_step, save and load weights."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tinker import types

from tinkerlab.rehearsal.engine.losses import check_inputs
from tinkerlab.rehearsal.engine.training import TrainableAdapter
from tinkerlab.rehearsal.engine.types import AdamSettings, AdapterConfig
from tinkerlab.rehearsal.errors import ServiceError, Unprocessable, UserError
from tinkerlab.rehearsal.service import wire
from tinkerlab.rehearsal.service.checkpoints import EXTERNAL, SAMPLER, TRAINING, check_ttl
from tinkerlab.rehearsal.service.encryption import encrypt_folder
from tinkerlab.rehearsal.service.http import read, read_body, reply, require_finite, state_of
from tinkerlab.rehearsal.service.ordering import RequestOrder
from tinkerlab.rehearsal.service.runs import Run
from tinkerlab.rehearsal.service.session_routes import require_session
from tinkerlab.rehearsal.service.state import State

# Largest rank that the rehearsal allocates; the hosted service's limits differ by model.
_MAX_RANK = 1024

Work = Callable[[Run], "bytes | dict[str, Any]"]


async def create_model(request: Request) -> Response:
    body = await read(request, types.CreateModelRequest)
    state = state_of(request)
    require_session(state, body.session_id)
    model_id = f"{body.session_id}:train:{body.model_seq_id}"
    if not state.futures.known(f"{model_id}:create"):
        config = _adapter_config(body.lora_config)
        _require_adam(body.optimizer_config)
        run = _new_run(state, model_id, body.base_model, config, first_request=1)
        _create(state, run, body.session_id, body.user_metadata, load=None)
    return reply(types.UntypedAPIFuture(request_id=f"{model_id}:create", model_id=model_id))


async def load_weights(request: Request) -> Response:
    body = await read(request, types.LoadWeightsRequest)
    state = state_of(request)
    if (body.model_id is None) == (body.session_id is None):
        raise Unprocessable("send either model_id with seq_id, or session_id with model_seq_id")
    if body.model_id is not None:
        return _load_into(state, body, body.model_id)
    if body.session_id is None or body.model_seq_id is None:
        raise Unprocessable("model_seq_id is missing")
    require_session(state, body.session_id)
    # The SDK derives the same id on its side (tinker/lib/public_interfaces/service_client.py).
    model_id = f"{body.session_id}:train:{body.model_seq_id}"
    if not state.futures.known(f"{model_id}:create"):
        saved = state.checkpoints.get(body.path, kind=TRAINING, use="loading training weights")
        _require_adam(body.optimizer_config)
        name = body.base_model or saved.base_model
        if state.models.get(name) is not state.models.get(saved.base_model):
            raise UserError(f"{body.path} was trained on {saved.base_model}, not on {name}")
        config = AdapterConfig(**saved.lora)
        run = _new_run(state, model_id, name, config, first_request=1)

        def load(adapter: TrainableAdapter) -> None:
            adapter.load(saved.directory, with_optimizer=body.optimizer)

        _create(state, run, body.session_id, body.user_metadata, load=load, path=body.path)
    return reply(types.UntypedAPIFuture(request_id=f"{model_id}:create", model_id=model_id))


def _new_run(
    state: State, model_id: str, base_model: str, config: AdapterConfig, *, first_request: int
) -> Run:
    return Run(
        model_id=model_id,
        base_model=base_model,
        lora=dataclasses.asdict(config),
        model=state.models.get(base_model),
        order=RequestOrder(state.worker.put, first=first_request),
    )


def _create(
    state: State,
    run: Run,
    session_id: str,
    user_metadata: dict[str, Any] | None,
    *,
    load: Callable[[TrainableAdapter], None] | None,
    path: str | None = None,
) -> None:
    """Register the run and queue its creation, with weights from a checkpoint or fresh ones."""
    state.runs.add(run, session_id, user_metadata)
    state.futures.begin(f"{run.model_id}:create")

    def create() -> dict[str, Any]:
        try:
            adapter = TrainableAdapter(run.model.base, AdapterConfig(**run.lora))
            if load is not None:
                load(adapter)
        except Exception as error:
            run.failure = str(error)
            raise
        run.adapter = adapter
        if load is None:
            return {"type": "create_model", "model_id": run.model_id}
        return {"type": "load_weights", "model_id": run.model_id, "path": path}

    state.worker.put(lambda: state.fulfil(f"{run.model_id}:create", create))


def _load_into(state: State, body: types.LoadWeightsRequest, model_id: str) -> Response:
    run = state.runs.live(model_id)

    def prepare() -> Work:
        saved = state.checkpoints.get(body.path, kind=TRAINING, use="loading training weights")
        if state.models.get(saved.base_model) is not run.model:
            raise UserError(f"{body.path} was trained on {saved.base_model}")
        if saved.lora["rank"] != run.lora["rank"]:
            raise UserError(
                f"{body.path} has LoRA rank {saved.lora['rank']}, this run has {run.lora['rank']}"
            )

        def work(run: Run) -> dict[str, Any]:
            run.ready().load(saved.directory, with_optimizer=body.optimizer)
            return {"type": "load_weights", "model_id": run.model_id, "path": body.path}

        return work

    return _enqueue(state, run, body.seq_id, prepare)


def _enqueue(
    state: State,
    run: Run,
    seq_id: int | None,
    prepare: Callable[[], Work],
    release: Callable[[], None] | None = None,
) -> Response:
    """Queue a run's request at its sequence number; one that was queued before is not again.

    ``prepare`` checks the request and returns its work; what it refuses doesn't hold up the
    requests that follow. ``release`` runs after the work, whatever became of it.
    """
    if seq_id is not None and seq_id < 0:
        raise Unprocessable(f"seq_id {seq_id} is negative")
    request_id = f"{run.model_id}:{uuid.uuid4().hex if seq_id is None else seq_id}"
    if not state.futures.known(request_id):
        try:
            work = prepare()
        except ServiceError:
            run.order.refuse(seq_id)
            raise
        state.futures.begin(request_id)

        def do() -> None:
            try:
                state.fulfil(request_id, lambda: work(run))
            finally:
                if release is not None:
                    release()

        run.order.submit(seq_id, do)
    return reply(types.UntypedAPIFuture(request_id=request_id, model_id=run.model_id))


async def get_info(request: Request) -> Response:
    body = await read(request, types.GetInfoRequest)
    state = state_of(request)
    row = state.runs.record(body.model_id)
    model = state.models.get(row["base_model"])
    return reply(
        types.GetInfoResponse(
            type="get_info",
            model_id=body.model_id,
            model_data=types.ModelData(
                arch=model.base.config.model_type,
                model_name=row["base_model"],
                # A folder: the client then needs no hub to load the tokenizer.
                tokenizer_id=str(model.directory),
            ),
            is_lora=True,
            lora_rank=row["lora"]["rank"],
            model_name=row["base_model"],
        )
    )


async def forward_backward(request: Request) -> Response:
    content_type = request.headers.get("content-type", "").split(";")[0]
    if content_type != "application/x-protobuf":
        raise Unprocessable(f"forward_backward takes application/x-protobuf, not {content_type!r}")
    message = wire.parse_forward_backward(await read_body(request))
    state = state_of(request)
    run = state.runs.live(message.model_id)

    def decode() -> Work:
        base = run.model.base
        data = wire.training_data(
            message, vocab_size=base.vocab_size, context_length=base.context_length
        )
        loss_fn, config, forward_only = (
            message.loss_fn,
            wire.loss_config(message),
            message.forward_only,
        )
        check_inputs(loss_fn, config, data)

        def work(run: Run) -> bytes:
            result = run.ready().forward_backward(data, loss_fn, config, forward_only=forward_only)
            return wire.encode_forward_backward(result)

        return work

    # The SDK numbers from 1, and sends 0 where its caller gave none (tinker/proto/request_conv.py).
    seq_id = message.seq_id
    if seq_id < 1:
        raise Unprocessable(f"seq_id {seq_id} is below 1")
    return _enqueue(state, run, seq_id, decode)


async def optim_step(request: Request) -> Response:
    body = await read(request, types.OptimStepRequest)
    state = state_of(request)
    run = state.runs.live(body.model_id)

    def prepare() -> Work:
        params = body.optim_params
        if not isinstance(params, types.AdamParams):
            raise UserError(
                f"optimizer {params.type!r} is not supported by the rehearsal: use Adam"
            )
        settings = params.model_dump()
        require_finite(**settings)
        if not (0 <= params.beta1 < 1 and 0 <= params.beta2 < 1):
            raise UserError("beta1 and beta2 must be from 0 up to 1, 1 excluded")
        if params.eps < 0 or params.learning_rate < 0 or params.weight_decay < 0:
            raise UserError("learning_rate, eps and weight_decay must not be negative")

        def work(run: Run) -> dict[str, Any]:
            return {"metrics": run.ready().optim_step(AdamSettings(**settings))}

        return work

    return _enqueue(state, run, body.seq_id, prepare)


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

    return _enqueue(state, run, seq_id, prepare, release)


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

    return _enqueue(state, run, body.seq_id, lambda: work)


async def create_custom_loss(request: Request) -> Response:
    raise UserError(
        "the rehearsal runs custom losses on the client's side only (forward_backward_custom);"
        " create_custom_loss is not supported"
    )


def _adapter_config(config: types.LoraConfig | None) -> AdapterConfig:
    if config is None:
        raise UserError("lora_config is missing: the rehearsal trains LoRA adapters only")
    if not 1 <= config.rank <= _MAX_RANK:
        raise UserError(f"lora_config.rank is {config.rank}: it must be from 1 to {_MAX_RANK}")
    if not (config.train_attn or config.train_mlp or config.train_unembed):
        raise UserError("train_attn, train_mlp and train_unembed are all false: nothing to train")
    if config.seed is not None and not -(2**63) <= config.seed < 2**63:
        raise UserError("lora_config.seed doesn't fit in 64 bits")
    return AdapterConfig(
        rank=config.rank,
        seed=config.seed,
        train_attn=config.train_attn,
        train_mlp=config.train_mlp,
        train_unembed=config.train_unembed,
    )


def _require_adam(config: Any) -> None:
    if config is not None and config.type != "adamw":
        raise UserError(f"optimizer {config.type!r} is not supported by the rehearsal: use adamw")


ROUTES = [
    Route("/create_model", create_model, methods=["POST"]),
    Route("/get_info", get_info, methods=["POST"]),
    Route("/forward_backward", forward_backward, methods=["POST"]),
    Route("/optim_step", optim_step, methods=["POST"]),
    Route("/save_weights", save_weights, methods=["POST"]),
    Route("/save_weights_for_sampler", save_weights_for_sampler, methods=["POST"]),
    Route("/save_weights_external", save_weights_external, methods=["POST"]),
    Route("/load_weights", load_weights, methods=["POST"]),
    Route("/create_custom_loss", create_custom_loss, methods=["POST"]),
]
