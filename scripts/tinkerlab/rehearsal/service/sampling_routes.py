"""Sampling sessions and samples."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tinker import types

from tinkerlab.rehearsal.engine.types import SamplingRequest, SamplingResult
from tinkerlab.rehearsal.errors import NotFound, ServiceError, Unprocessable, UserError
from tinkerlab.rehearsal.service import wire
from tinkerlab.rehearsal.service.checkpoints import SAMPLER
from tinkerlab.rehearsal.service.http import read, reply, require_finite, state_of
from tinkerlab.rehearsal.service.served import ServedModel
from tinkerlab.rehearsal.service.session_routes import require_session
from tinkerlab.rehearsal.service.state import State

logger = logging.getLogger("tinkerlab.rehearsal")

# A client numbers its requests within a block of its own (tinker SamplingClient).
_CLIENT_BLOCK = 1_000_000_000
_MAX_SAMPLES = 1024
_MAX_TOP_K = 1024


async def create_sampling_session(request: Request) -> Response:
    body = await read(request, types.CreateSamplingSessionRequest)
    state = state_of(request)
    require_session(state, body.session_id)
    base_model, directory = _weights(state, body.base_model, body.model_path)
    sampler_id = f"{body.session_id}:sample:{body.sampling_session_seq_id}"
    state.store.insert(
        "samplers",
        sampler_id=sampler_id,
        session_id=body.session_id,
        base_model=base_model,
        model_path=body.model_path,
        directory=directory,
        created=time.time(),
    )
    return reply(types.CreateSamplingSessionResponse(sampling_session_id=sampler_id))


async def join_sampling_session(request: Request) -> Response:
    body = await read(request, types.JoinSamplingSessionRequest)
    store = state_of(request).store
    row = _sampler(state_of(request), body.sampling_session_id)
    counter = row["clients"] + 1
    store.update("samplers", "sampler_id", body.sampling_session_id, clients=counter)
    return reply(types.JoinSamplingSessionResponse(client_counter=counter))


async def get_sampler(request: Request) -> Response:
    row = _sampler(state_of(request), request.path_params["sampler_id"])
    return reply(
        types.GetSamplerResponse(
            sampler_id=row["sampler_id"],
            base_model=row["base_model"],
            model_path=row["model_path"],
        )
    )


async def asample(request: Request) -> Response:
    body = await read(request, types.SampleRequest)
    state = state_of(request)
    if body.sampling_session_id is not None:
        if body.seq_id is None or body.seq_id < 0:
            raise Unprocessable("seq_id must be 0 or greater with sampling_session_id")
        row = _sampler(state, body.sampling_session_id)
        require_session(state, row["session_id"])
        base_model, directory = row["base_model"], _directory(state, row)
        request_id = f"{body.sampling_session_id}:{body.seq_id}"
        group = f"{body.sampling_session_id}:{body.seq_id // _CLIENT_BLOCK}"
    else:
        base_model, directory = _weights(state, body.base_model, body.model_path)
        request_id, group = f"sample:{uuid.uuid4()}", None
    if not 1 <= body.num_samples <= _MAX_SAMPLES:
        raise UserError(f"num_samples is {body.num_samples}: it must be from 1 to {_MAX_SAMPLES}")
    if not state.futures.known(request_id):
        model = state.models.get(base_model)
        asked = _sampling_request(body, model)
        adapter = None
        if directory is not None:
            folder = state.checkpoints.folder(directory)
            adapter = await run_in_threadpool(_load_adapter, model, folder)
        indices = _target_indices(body)
        # Loading gave way to other requests, so a retry may have got here first.
        if state.futures.begin(request_id, group=group):
            try:
                future = model.sampler.submit(asked, adapter)
            except ServiceError as error:
                state.futures.fail(request_id, error.message, "user")
                raise
            state.sampling[request_id] = (model, future)
            future.add_done_callback(lambda done: _finish(state, request_id, done, indices))
    sequence_ids = [f"{request_id}:{index}" for index in range(body.num_samples)]
    return reply(types.UntypedAPIFuture(request_id=request_id, sample_sequence_ids=sequence_ids))


def _finish(
    state: State,
    request_id: str,
    done: Future[SamplingResult],
    indices: tuple[np.ndarray, np.ndarray] | None,
) -> None:
    """Store a sample's outcome; runs on the sampler's thread."""
    state.sampling.pop(request_id, None)

    def result() -> bytes:
        try:
            return wire.encode_sample(done.result(), indices)
        except CancelledError:
            raise UserError("the request was cancelled") from None

    state.fulfil(request_id, result)


def _sampler(state: State, sampler_id: str) -> dict[str, Any]:
    row = state.store.one("samplers", "sampler_id", sampler_id)
    if row is None:
        raise NotFound(f"no sampling session {sampler_id}")
    return row


def _directory(state: State, row: dict[str, Any]) -> str | None:
    """Where a sampler's weights are: fixed, or for an inflight one those published last."""
    if row["shared_with"] is not None:
        published = state.store.one("inflight", "model_id", row["shared_with"])
        return None if published is None else published["directory"]
    return row["directory"]


def _weights(
    state: State, base_model: str | None, model_path: str | None
) -> tuple[str, str | None]:
    """The base model's name and the folder of the adapter, None for the base model itself."""
    if model_path is None:
        if base_model is None:
            raise UserError("send base_model, or model_path for trained weights")
        state.models.get(base_model)
        return base_model, None
    saved = state.checkpoints.get(model_path, kind=SAMPLER, use="sampling")
    if base_model is not None and state.models.get(base_model) is not state.models.get(
        saved.base_model
    ):
        raise UserError(f"{model_path} was trained on {saved.base_model}, not on {base_model}")
    state.models.get(saved.base_model)
    return saved.base_model, saved.directory.name


def _load_adapter(model: ServedModel, folder: Path) -> Any:
    if not folder.is_dir():
        raise NotFound("the sampling session's weights were deleted")
    return model.adapter(folder)


def _sampling_request(body: types.SampleRequest, model: ServedModel) -> SamplingRequest:
    """The engine's form of a request; refuses what has no meaning.

    Raises:
        UserError, Unprocessable: what is wrong and where.
    """
    tokens: list[int] = []
    for position, chunk in enumerate(body.prompt.chunks):
        if not isinstance(chunk, types.EncodedTextChunk):
            raise UserError(f"prompt chunk {position} is no text; the rehearsal takes text only")
        tokens.extend(chunk.tokens)
    if not tokens:
        raise UserError("prompt is empty")
    limit = 2**31
    if not all(0 <= token < limit for token in tokens):
        raise UserError("prompt holds a token id outside the vocabulary")
    wire.check_token_ids(np.asarray(tokens), model.base.vocab_size, "prompt")
    params = body.sampling_params
    require_finite(temperature=params.temperature, top_p=params.top_p)
    if params.temperature < 0:
        raise UserError(f"temperature is {params.temperature}: it must be 0 or greater")
    if not 0 < params.top_p <= 1:
        raise UserError(f"top_p is {params.top_p}: it must be over 0 and at most 1")
    if params.top_k != -1 and params.top_k < 1:
        raise UserError(f"top_k is {params.top_k}: it must be -1 (no limit) or at least 1")
    if params.max_tokens is not None and params.max_tokens < 1:
        raise UserError(f"max_tokens is {params.max_tokens}: it must be at least 1")
    length, context = len(tokens), model.base.context_length
    if length + (params.max_tokens or 1) > context:
        raise UserError(
            f"prompt ({length} tokens) + max_tokens ({params.max_tokens}) is over the model's"
            f" context window of {context}"
        )
    for name in ("topk_prompt_logprobs", "topk_sample_logprobs", "prompt_alt_tokens_k"):
        if not 0 <= getattr(body, name) <= _MAX_TOP_K:
            raise UserError(f"{name} must be from 0 to {_MAX_TOP_K}")
    last_n = body.prompt_logprobs_last_n
    if last_n is not None and (not body.prompt_logprobs or not 1 <= last_n <= length - 1):
        raise UserError(
            f"prompt_logprobs_last_n is {last_n}: it needs prompt_logprobs and must be from 1 to"
            f" {length - 1}"
        )
    stop_strings, stop_tokens = _stop_conditions(params.stop)
    return SamplingRequest(
        tokens=tokens,
        num_samples=body.num_samples,
        max_tokens=params.max_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        seed=None if params.seed is None else params.seed % (2**63 - 1),
        stop_strings=stop_strings,
        stop_tokens=stop_tokens,
        prompt_logprobs=bool(body.prompt_logprobs),
        topk_prompt_logprobs=body.topk_prompt_logprobs,
        topk_sample_logprobs=body.topk_sample_logprobs,
        target_prompt_logprobs=_targets(body, length, model.base.vocab_size),
        prompt_alt_tokens_k=body.prompt_alt_tokens_k,
        prompt_logprobs_last_n=last_n,
    )


def _stop_conditions(
    stop: str | Sequence[str] | Sequence[int] | None,
) -> tuple[tuple[str, ...], frozenset[int] | None]:
    """Stop strings and stop tokens. With strings the model's end-of-sequence token still
    stops; ``[]`` switches that off too (tinker SamplingParams.stop)."""
    if stop is None:
        return (), None
    if isinstance(stop, str):
        stop = [stop]
    if not stop:
        return (), frozenset()
    strings = tuple(item for item in stop if isinstance(item, str))
    if any(not string for string in strings):
        raise UserError("stop holds an empty string")
    if strings:
        return strings, None
    return (), frozenset(item for item in stop if isinstance(item, int))


def _targets(body: types.SampleRequest, length: int, vocab_size: int) -> np.ndarray | None:
    """``target_prompt_logprobs`` as a dense ``[length - 1, K]`` table with -1 for "not asked"."""
    tensor = body.target_prompt_logprobs
    if tensor is None:
        return None
    where, shape = "target_prompt_logprobs", list(tensor.shape or [])
    if tensor.dtype != "int64" or len(shape) != 2 or shape[0] != length - 1 or shape[1] < 1:
        raise UserError(f"{where} must be int64 of shape [{length - 1}, K], not {shape}")
    limit = 2**31
    values = [int(value) for value in tensor.data]
    if not all(-1 <= value < limit for value in values):
        raise UserError(f"{where} holds a token id outside the vocabulary")
    flat, indices = np.asarray(values, np.int64), _target_indices(body)
    if indices is not None:
        table = wire.dense_from_csr(flat, *indices, shape, where, fill=-1)
    elif flat.size == shape[0] * shape[1]:
        table = flat.reshape(shape)
    else:
        raise Unprocessable(f"{where}: {flat.size} values don't fill shape {shape}")
    wire.check_token_ids(table[table != -1], vocab_size, where)
    return table


def _target_indices(body: types.SampleRequest) -> tuple[np.ndarray, np.ndarray] | None:
    tensor = body.target_prompt_logprobs
    if tensor is None or tensor.sparse_crow_indices is None:
        return None
    try:
        rows = np.asarray(tensor.sparse_crow_indices, np.int64)
        columns = np.asarray(tensor.sparse_col_indices or [], np.int64)
    except OverflowError:
        raise Unprocessable("target_prompt_logprobs: an index doesn't fit in 64 bits") from None
    return rows, columns


ROUTES = [
    Route("/create_sampling_session", create_sampling_session, methods=["POST"]),
    Route("/join_sampling_session", join_sampling_session, methods=["POST"]),
    Route("/samplers/{sampler_id}", get_sampler, methods=["GET"]),
    Route("/asample", asample, methods=["POST"]),
]
