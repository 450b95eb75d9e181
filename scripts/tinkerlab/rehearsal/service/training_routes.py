"""Training: forward_backward and optim_step."""

from __future__ import annotations

import math
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tinker import types

from tinkerlab.rehearsal.engine.losses import check_inputs
from tinkerlab.rehearsal.engine.types import AdamSettings
from tinkerlab.rehearsal.errors import Unprocessable, UserError
from tinkerlab.rehearsal.service import wire
from tinkerlab.rehearsal.service.http import read, read_body, require_finite, state_of
from tinkerlab.rehearsal.service.queueing import Work, enqueue
from tinkerlab.rehearsal.service.runs import Run


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
    return enqueue(state, run, seq_id, decode)


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
            metrics = run.ready().optim_step(AdamSettings(**settings))
            # JSON has no word for an infinite gradient norm, and the SDK refuses Python's.
            return {"metrics": {k: v for k, v in metrics.items() if math.isfinite(v)}}

        return work

    return enqueue(state, run, body.seq_id, prepare)


async def create_custom_loss(request: Request) -> Response:
    raise UserError(
        "the rehearsal runs custom losses on the client's side only (forward_backward_custom);"
        " create_custom_loss is not supported"
    )


ROUTES = [
    Route("/forward_backward", forward_backward, methods=["POST"]),
    Route("/optim_step", optim_step, methods=["POST"]),
    Route("/create_custom_loss", create_custom_loss, methods=["POST"]),
]
