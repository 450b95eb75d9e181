"""Submitting a sampler save so that it really is in order with the calls around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tinker
    from tinker.types import SaveWeightsForSamplerResponse


def submit_sampler_save(
    client: tinker.TrainingClient, name: str, ttl_seconds: int | None
) -> tinker.APIFuture[SaveWeightsForSamplerResponse]:
    """``save_weights_for_sampler``, with its place in the queue taken before this returns.

    ``forward_backward``, ``optim_step`` and ``save_state`` take their sequence number in the
    thread that calls them. ``save_weights_for_sampler`` (tinker 0.38.0) takes it later, when
    the SDK's own thread starts on the request; steps submitted meanwhile overtake it, and the
    "checkpoint of step 20" then holds 21 or 22 updates. That thread starts tasks in the order
    in which they were handed over, so once an empty task that was handed over after the save
    has run, the save has its number.
    """
    future = client.save_weights_for_sampler(name, ttl_seconds=ttl_seconds)

    async def after_it() -> None:
        return None

    client.holder.run_coroutine_threadsafe(after_it()).result()
    return future
