"""Protobuf on the wire <-> the engine's plain data, with the SDK's own message types.

Whatever arrives, decoding either succeeds or raises a ``ServiceError`` that says what is wrong.
"""

from __future__ import annotations

import itertools

import numpy as np
import zstandard
from google.protobuf.message import DecodeError
from tinker.proto import tinker_public_pb2 as pb

from tinkerlab.rehearsal.engine.types import (
    ForwardBackwardResult,
    SamplingResult,
    TopK,
    TrainingDatum,
)
from tinkerlab.rehearsal.errors import Unprocessable, UserError

# Bounds that keep one malformed request from taking the machine down.
MAX_BODY_BYTES = 256 * 1024 * 1024
_MAX_TENSOR_ELEMENTS = 64 * 1024 * 1024

_DTYPES = {
    pb.DTYPE_FLOAT32: np.dtype(np.float32),
    pb.DTYPE_INT64: np.dtype(np.int64),
    pb.DTYPE_INT32: np.dtype(np.int32),
}


def decompress(body: bytes) -> bytes:
    """Undo zstd, up to ``MAX_BODY_BYTES``.

    Raises:
        Unprocessable: not a zstd frame, or larger than the bound.
    """
    try:
        plain = zstandard.ZstdDecompressor().stream_reader(body).read(MAX_BODY_BYTES + 1)
    except zstandard.ZstdError as error:
        raise Unprocessable(f"the body is not valid zstd: {error}") from None
    if len(plain) > MAX_BODY_BYTES:
        raise Unprocessable(f"the body is over {MAX_BODY_BYTES} bytes when decompressed")
    return plain


def parse_forward_backward(body: bytes) -> pb.ForwardBackwardRequest:
    """Parse a ``forward_backward`` body.

    Raises:
        Unprocessable: the bytes are not such a message.
    """
    message = pb.ForwardBackwardRequest()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise Unprocessable(f"the body is not a ForwardBackwardRequest: {error}") from None
    return message


def loss_config(message: pb.ForwardBackwardRequest) -> dict[str, float | str]:
    """The loss function's settings; the tagged map wins over the legacy one, as its comment
    in tinker_public_pb2.pyi asks."""
    config: dict[str, float | str] = dict(message.loss_fn_config)
    for name, value in message.loss_fn_config_v2.items():
        kind = value.WhichOneof("value")
        if kind is not None:
            config[name] = value.number if kind == "number" else value.text
    return config


def training_data(
    message: pb.ForwardBackwardRequest, *, vocab_size: int, context_length: int
) -> list[TrainingDatum]:
    """The request's examples as arrays.

    Raises:
        UserError: no data, an empty datum, a token id outside the vocabulary, more tokens
            than the context window, or an input that isn't text.
        Unprocessable: bytes that don't have the declared type or shape.
    """
    if not message.data:
        raise UserError("data is empty: send at least one datum")
    data = []
    for index, datum in enumerate(message.data):
        where = f"data[{index}]"
        tokens = _chunk_tokens(datum.model_input, where)
        if tokens.size == 0:
            raise UserError(f"{where}: model_input is empty")
        if tokens.size > context_length:
            raise UserError(
                f"{where}: {tokens.size} tokens are over the model's context window of"
                f" {context_length}"
            )
        check_token_ids(tokens, vocab_size, f"{where}.model_input")
        inputs = {
            name: _tensor(tensor, f"{where}.loss_fn_inputs[{name!r}]")
            for name, tensor in datum.loss_fn_inputs.items()
        }
        if "target_tokens" in inputs:
            check_token_ids(inputs["target_tokens"], vocab_size, f"{where}.target_tokens")
        data.append(TrainingDatum(tokens=tokens, loss_inputs=inputs))
    return data


def check_token_ids(tokens: np.ndarray, vocab_size: int, where: str) -> None:
    """Raise ``UserError`` when a token id is outside ``[0, vocab_size)``."""
    if tokens.size and not (int(tokens.min()) >= 0 and int(tokens.max()) < vocab_size):
        bad = int(tokens[(tokens < 0) | (tokens >= vocab_size)].flat[0])
        raise UserError(f"{where}: token id {bad} is outside the vocabulary of {vocab_size}")


def _chunk_tokens(chunks, where: str) -> np.ndarray:
    parts = []
    for position, chunk in enumerate(chunks):
        kind = chunk.WhichOneof("chunk")
        if kind != "encoded_text":
            raise UserError(
                f"{where}: chunk {position} is {kind or 'empty'}; the rehearsal's models take"
                " text only"
            )
        parts.append(_numbers(chunk.encoded_text.tokens, np.dtype(np.int32), where))
    if not parts:
        return np.zeros(0, np.int64)
    return np.concatenate(parts).astype(np.int64)


def _numbers(raw: bytes, dtype: np.dtype, where: str) -> np.ndarray:
    if len(raw) % dtype.itemsize:
        raise Unprocessable(f"{where}: {len(raw)} bytes are no whole number of {dtype} values")
    return np.frombuffer(raw, dtype)


def _tensor(tensor: pb.Tensor, where: str) -> np.ndarray:
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        raise Unprocessable(f"{where}: dtype {tensor.dtype} is not one that the service takes")
    shape = list(tensor.shape)
    if any(size < 0 for size in shape):
        raise Unprocessable(f"{where}: shape {shape} has a negative size")
    if tensor.HasField("sparse_csr"):
        csr, index = tensor.sparse_csr, np.dtype(np.int64)
        # 0 in an unlisted cell: no weight (tinker/types/tensor_data.py).
        dense = dense_from_csr(
            _numbers(csr.values, dtype, where),
            _numbers(csr.crow_indices, index, where),
            _numbers(csr.col_indices, index, where),
            shape,
            where,
        )
    else:
        dense = _numbers(tensor.dense, dtype, where)
        if shape:
            if _elements(shape) != dense.size:
                raise Unprocessable(f"{where}: {dense.size} values don't fill shape {shape}")
            dense = dense.reshape(shape)
    return dense.astype(np.int64) if dtype.kind == "i" else dense.astype(np.float32)


def dense_from_csr(
    values: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    shape: list[int],
    where: str,
    fill: int = 0,
) -> np.ndarray:
    """Fill a dense array from CSR rows; unlisted cells get ``fill``.

    Raises:
        Unprocessable: the indices don't describe a 2-D array of this shape.
    """
    if len(shape) != 2:
        raise Unprocessable(f"{where}: a sparse tensor needs a 2-D shape, not {shape}")
    if _elements(shape) > _MAX_TENSOR_ELEMENTS:
        raise Unprocessable(f"{where}: shape {shape} is too large")
    counts = np.diff(rows)
    if (
        shape[0] < 0
        or shape[1] < 0
        or rows.size != shape[0] + 1
        or rows[0] != 0
        or rows[-1] != values.size
        or columns.size != values.size
        or (counts < 0).any()
        or ((columns < 0) | (columns >= shape[1])).any()
    ):
        raise Unprocessable(f"{where}: the sparse indices don't describe shape {shape}")
    dense = np.full(shape, fill, values.dtype)
    dense[np.repeat(np.arange(shape[0]), counts), columns] = values
    return dense


def _elements(shape: list[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def encode_forward_backward(result: ForwardBackwardResult) -> bytes:
    """A ``ForwardBackwardOutput`` message: one record that batches all datums."""
    message = pb.ForwardBackwardOutput(loss_fn_output_type="TorchLossReturn")
    for name, value in result.metrics.items():
        message.metrics[name] = value
    # A record's fields have one trailing shape, so datums of another K start a new record.
    for _, group in itertools.groupby(result.outputs, key=_trailing_shapes):
        outputs = list(group)
        record = message.loss_fn_outputs.add(num_datums=len(outputs))
        for name in outputs[0]:
            arrays = [np.ascontiguousarray(output[name], np.float32) for output in outputs]
            field = record.fields[name]
            field.dtype = pb.DTYPE_FLOAT32
            field.trailing_shape.extend(arrays[0].shape[1:])
            field.data = b"".join(array.tobytes() for array in arrays)
            ends = np.cumsum([0, *(array.nbytes for array in arrays)])
            field.offsets = ends.astype(np.int64).tobytes()
    return message.SerializeToString()


def _trailing_shapes(output: dict[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    return {name: array.shape[1:] for name, array in output.items()}


def encode_sample(
    result: SamplingResult, target_indices: tuple[np.ndarray, np.ndarray] | None = None
) -> bytes:
    """A ``SampleResponse`` message.

    ``target_indices`` are the row pointers and columns of a request that sent
    ``target_prompt_logprobs`` as CSR; the reply then has the same layout.
    """
    message = pb.SampleResponse()
    for sequence in result.sequences:
        proto = message.sequences.add()
        stopped = sequence.stop_reason == "stop"
        proto.stop_reason = pb.STOP_REASON_STOP if stopped else pb.STOP_REASON_LENGTH
        proto.tokens = np.asarray(sequence.tokens, np.int32).tobytes()
        proto.logprobs = np.asarray(sequence.logprobs, np.float32).tobytes()
        if sequence.topk is not None:
            _write_topk(proto.topk_sampled_logprobs, sequence.topk)
    if result.prompt_logprobs is not None:
        message.prompt_logprobs = np.asarray(result.prompt_logprobs, np.float32).tobytes()
    if result.topk_prompt_logprobs is not None:
        _write_topk(message.topk_prompt_logprobs, result.topk_prompt_logprobs)
    if result.target_prompt_logprobs is not None:
        scores = result.target_prompt_logprobs
        if target_indices is None:
            _write_tensor(message.target_prompt_logprobs, scores)
        else:
            _write_csr(message.target_prompt_logprobs, scores, *target_indices)
    if result.alt_tokens is not None:
        _write_tensor(message.prompt_alt_tokens.tokens, result.alt_tokens[0])
        _write_tensor(message.prompt_alt_tokens.logprobs, result.alt_tokens[1])
    return message.SerializeToString()


def _write_topk(proto: pb.TopkLogprobs, table: TopK) -> None:
    proto.length, proto.k = table.token_ids.shape
    proto.token_ids = np.ascontiguousarray(table.token_ids, np.int32).tobytes()
    proto.logprobs = np.ascontiguousarray(table.logprobs, np.float32).tobytes()


def _write_tensor(proto: pb.Tensor, array: np.ndarray) -> None:
    integral = array.dtype.kind == "i"
    proto.dtype = pb.DTYPE_INT32 if integral else pb.DTYPE_FLOAT32
    proto.shape.extend(array.shape)
    proto.dense = np.ascontiguousarray(array, np.int32 if integral else np.float32).tobytes()


def _write_csr(proto: pb.Tensor, dense: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> None:
    proto.dtype = pb.DTYPE_FLOAT32
    proto.shape.extend(dense.shape)
    values = dense[np.repeat(np.arange(len(rows) - 1), np.diff(rows)), columns]
    proto.sparse_csr.values = values.astype(np.float32).tobytes()
    proto.sparse_csr.crow_indices = rows.astype(np.int64).tobytes()
    proto.sparse_csr.col_indices = columns.astype(np.int64).tobytes()
