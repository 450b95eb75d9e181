"""Times each stage of a request, with the functions that the SDK itself calls (tinker 0.38).

forward_backward: datums -> ``forward_backward_request_to_proto`` -> ``SerializeToString`` ->
zstd when the service asks for it. sample: ``SampleRequest`` -> ``model_dump`` -> JSON text.
"""

from __future__ import annotations

import cProfile
import json
import pstats
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tinkerlab.errors import InputError

T = TypeVar("T")


@dataclass
class Costs:
    """Median milliseconds of each stage, and what they were of.

    Attributes:
        build: making the datums, in the script's own thread.
        convert, serialize: on the SDK's event loop, once a chunk.
        compress: in a thread of the SDK's, only when the service asks for it.
        dump, encode: a sample request of ``prompt_tokens``, on the SDK's event loop.
        largest: bytes of the largest single datum, as the SDK estimates them.
        chunks: requests that the batch is cut into.
        slowest: for a slow build, the functions that took the time: (name, calls, ms).
    """

    datums: int = 0
    tokens: int = 0
    pieces: int = 0
    build: float = 0.0
    convert: float = 0.0
    serialize: float = 0.0
    compress: float = 0.0
    dump: float = 0.0
    encode: float = 0.0
    prompt_tokens: int = 0
    prompt_pieces: int = 0
    bytes: int = 0
    compressed: int = 0
    largest: int = 0
    chunks: int = 0
    chunk_bytes: int = 0
    chunk_datums: int = 0
    protobuf: str = ""
    slowest: list[tuple[str, int, float]] = field(default_factory=list)


def timed(function: Callable[[], T], repeats: int) -> tuple[float, T]:
    """Median milliseconds of ``repeats`` calls after one to warm up, and the last result."""
    result = function()
    milliseconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        result = function()
        milliseconds.append(1000 * (time.perf_counter() - started))
    return statistics.median(milliseconds), result


def measure(build: Callable[[], list[Any]], repeats: int, prompt_length: int) -> Costs:
    """
    Raises:
        InputError: the datums cannot be sent at all; the message is the SDK's.
    """
    from google.protobuf.internal import api_implementation

    costs = Costs(protobuf=api_implementation.Type())
    costs.build, datums = timed(build, repeats)
    costs.datums = len(datums)
    costs.tokens = sum(datum.model_input.length for datum in datums)
    costs.pieces = sum(len(datum.model_input.chunks) for datum in datums)
    _train(costs, datums, repeats)
    _sample(costs, datums[0], repeats, prompt_length)
    return costs


def _train(costs: Costs, datums: list[Any], repeats: int) -> None:
    import zstandard
    from tinker import types
    from tinker.lib.public_interfaces.training_client import _estimate_datum_bytes_count_proto
    from tinker.proto.request_conv import forward_backward_request_to_proto
    from tinker.types.client_config_response import ClientConfigResponse

    config = ClientConfigResponse()
    costs.chunk_bytes, costs.chunk_datums = (
        config.fwdbwd_max_chunk_bytes_count,
        config.fwdbwd_max_chunk_len,
    )
    estimated = [_estimate_datum_bytes_count_proto(datum) for datum in datums]
    costs.largest = max(estimated)
    costs.chunks = _chunks(estimated, costs.chunk_bytes, costs.chunk_datums)
    request = types.ForwardBackwardRequest(
        forward_backward_input=types.ForwardBackwardInput(data=datums, loss_fn="cross_entropy"),
        model_id="measured",
        seq_id=1,
    )
    try:
        costs.convert, message = timed(lambda: forward_backward_request_to_proto(request), repeats)
    except (ValueError, TypeError) as error:
        raise InputError(f"the SDK cannot send these datums: {error}") from None
    costs.serialize, body = timed(message.SerializeToString, repeats)
    compress = zstandard.ZstdCompressor().compress  # its default level, as the SDK's call
    costs.compress, small = timed(lambda: compress(body), repeats)
    costs.bytes, costs.compressed = len(body), len(small)


def _chunks(estimated: list[int], most_bytes: int, most_datums: int) -> int:
    """Into how many requests ``TrainingClient._chunked_requests_generator`` cuts a batch."""
    chunks = held = bytes_ = 0
    for size in estimated:
        if (held and bytes_ + size > most_bytes) or held == most_datums:
            chunks, held, bytes_ = chunks + 1, 0, 0
        held, bytes_ = held + 1, bytes_ + size
    return chunks + (held > 0)


def _sample(costs: Costs, datum: Any, repeats: int, length: int) -> None:
    """A prompt of ``length`` tokens, cut into pieces as those of ``datum`` are."""
    import tinker
    from tinker import types
    from tinker._compat import model_dump

    pieces = [piece for piece in datum.model_input.chunks if hasattr(piece, "tokens")]
    size = max(len(pieces[0].tokens), 1) if len(pieces) > 1 else length
    ids = list(range(length))
    chunks: list[Any] = [
        tinker.EncodedTextChunk(tokens=ids[i : i + size]) for i in range(0, length, size)
    ]
    request = types.SampleRequest(
        sampling_session_id="measured",
        seq_id=1,
        num_samples=1,
        prompt=tinker.ModelInput(chunks=chunks),
        sampling_params=types.SamplingParams(max_tokens=1),
    )
    costs.prompt_tokens, costs.prompt_pieces = length, len(chunks)
    costs.dump, document = timed(
        lambda: model_dump(request, exclude_unset=False, exclude_none=True, mode="json"), repeats
    )
    costs.encode, _ = timed(lambda: json.dumps(document), repeats)


def profile(build: Callable[[], list[Any]]) -> list[tuple[str, int, float]]:
    """The three functions with the most time of their own in one build."""
    profiler = cProfile.Profile()
    profiler.runcall(build)
    rows = []
    for (file, line, name), row in pstats.Stats(profiler).stats.items():  # type: ignore[attr-defined]
        calls, own = row[1], row[2]
        place = name if file in ("~", "") else f"{name} ({file.rpartition('/')[2]}:{line})"
        rows.append((place, calls, 1000 * own))
    return sorted(rows, key=lambda row: -row[2])[:3]
