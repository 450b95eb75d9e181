"""Training runs: create one, fresh or from a checkpoint; load into one; describe one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tinker import types

from tinkerlab.rehearsal.engine.training import TrainableAdapter
from tinkerlab.rehearsal.engine.types import AdapterConfig
from tinkerlab.rehearsal.errors import Unprocessable, UserError
from tinkerlab.rehearsal.service.checkpoints import TRAINING
from tinkerlab.rehearsal.service.http import read, reply, state_of
from tinkerlab.rehearsal.service.ordering import RequestOrder
from tinkerlab.rehearsal.service.queueing import Work, enqueue
from tinkerlab.rehearsal.service.runs import Run
from tinkerlab.rehearsal.service.session_routes import require_session
from tinkerlab.rehearsal.service.state import State

# Largest rank that the rehearsal allocates; the hosted service's limits differ by model.
_MAX_RANK = 1024


async def create_model(request: Request) -> Response:
    body = await read(request, types.CreateModelRequest)
    state = state_of(request)
    require_session(state, body.session_id)
    model_id = f"{body.session_id}:train:{body.model_seq_id}"
    if not state.futures.known(f"{model_id}:create"):
        config = _adapter_config(body.lora_config)
        _require_adam(body.optimizer_config)
        run = _new_run(state, model_id, body.base_model, config)
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
        run = _new_run(state, model_id, name, config)

        def load(adapter: TrainableAdapter) -> None:
            adapter.load(saved.directory, with_optimizer=body.optimizer)

        _create(state, run, body.session_id, body.user_metadata, load=load, path=body.path)
    return reply(types.UntypedAPIFuture(request_id=f"{model_id}:create", model_id=model_id))


def _new_run(state: State, model_id: str, base_model: str, config: AdapterConfig) -> Run:
    return Run(
        model_id=model_id,
        base_model=base_model,
        lora=dataclasses.asdict(config),
        model=state.models.get(base_model),
        # A training client's first request has number 1 (tinker TrainingClient).
        order=RequestOrder(state.worker.put, first=1),
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

    return enqueue(state, run, body.seq_id, prepare)


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
    Route("/load_weights", load_weights, methods=["POST"]),
    Route("/get_info", get_info, methods=["POST"]),
]
