"""Queue one request of a training run: once, in its order, with a result to be fetched."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from starlette.responses import Response
from tinker import types

from tinkerlab.rehearsal.errors import ServiceError, Unprocessable
from tinkerlab.rehearsal.service.http import reply
from tinkerlab.rehearsal.service.runs import Run
from tinkerlab.rehearsal.service.state import State

Work = Callable[[Run], "bytes | dict[str, Any]"]


def enqueue(
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
