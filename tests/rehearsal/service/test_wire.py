"""Decoding is the inverse of the SDK's encoding, encoding of its decoding; garbage is refused."""

import numpy as np
import pytest
import tinker
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tinker import types
from tinker.proto import tinker_public_pb2 as pb
from tinker.proto.request_conv import forward_backward_request_to_proto
from tinker.proto.response_conv import (
    deserialize_forward_backward_output,
    deserialize_sample_response,
)

from tinkerlab.rehearsal.engine.types import (
    ForwardBackwardResult,
    SampledTokens,
    SamplingResult,
    TopK,
)
from tinkerlab.rehearsal.errors import ServiceError, Unprocessable, UserError
from tinkerlab.rehearsal.service import wire


def encode(data: list[tinker.Datum], **kwargs) -> bytes:
    request = types.ForwardBackwardRequest(
        forward_backward_input=types.ForwardBackwardInput(
            data=data, loss_fn=kwargs.pop("loss_fn", "cross_entropy"), **kwargs
        ),
        model_id="m",
        seq_id=1,
    )
    return forward_backward_request_to_proto(request).SerializeToString()


def decode(body: bytes, vocab_size: int = 100, context_length: int = 64):
    message = wire.parse_forward_backward(body)
    return wire.training_data(message, vocab_size=vocab_size, context_length=context_length)


def datum(tokens: list[int], **inputs) -> tinker.Datum:
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(tokens), loss_fn_inputs=inputs)


def test_a_datum_survives_the_wire() -> None:
    weights = np.asarray([0.0, 0.5, -2.0], np.float32)
    sent = datum([1, 2, 3], target_tokens=[2, 3, 4], weights=weights)
    (received,) = decode(encode([sent]))
    assert received.tokens.tolist() == [1, 2, 3]
    assert received.loss_inputs["target_tokens"].tolist() == [2, 3, 4]
    assert received.loss_inputs["target_tokens"].dtype == np.int64
    np.testing.assert_array_equal(received.loss_inputs["weights"], weights)


def test_a_sparse_tensor_arrives_dense() -> None:
    import torch

    table = torch.zeros(3, 20)
    table[0, 4], table[2, 7] = 0.25, -1.5
    sent = datum([1, 2, 3], target_tokens=[1, 1, 1], weights=table)
    assert sent.loss_fn_inputs["weights"].sparse_crow_indices is not None
    (received,) = decode(encode([sent]))
    np.testing.assert_array_equal(received.loss_inputs["weights"], table.numpy())


def test_the_tagged_loss_config_wins() -> None:
    message = wire.parse_forward_backward(encode([datum([1])], loss_fn_config={"a": 1.5, "b": "x"}))
    message.loss_fn_config["a"] = 9.0
    assert wire.loss_config(message) == {"a": 1.5, "b": "x"}


@pytest.mark.parametrize(
    ("tokens", "complaint"),
    [([], "empty"), ([100], "vocabulary"), ([-1], "vocabulary"), ([1] * 65, "context window")],
)
def test_bad_tokens_are_refused_with_their_place(tokens: list[int], complaint: str) -> None:
    with pytest.raises(UserError, match=rf"data\[1\].*{complaint}"):
        decode(encode([datum([1], target_tokens=[1]), datum(tokens)]))


def test_no_data_and_images_are_refused() -> None:
    with pytest.raises(UserError, match="data is empty"):
        decode(pb.ForwardBackwardRequest(model_id="m").SerializeToString())
    image = types.ImageChunk(data=b"x", format="png")
    with pytest.raises(UserError, match="image"):
        decode(encode([tinker.Datum(model_input=tinker.ModelInput(chunks=[image]))]))


def test_a_wrong_shape_is_refused() -> None:
    message = wire.parse_forward_backward(encode([datum([1, 2], weights=[1.0, 1.0])]))
    message.data[0].loss_fn_inputs["weights"].shape[0] = 3
    with pytest.raises(Unprocessable, match="shape"):
        decode(message.SerializeToString())


def test_decompression_is_bounded_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = zstandard.ZstdCompressor().compress(b"abc" * 1000)
    assert wire.decompress(packed) == b"abc" * 1000
    with pytest.raises(Unprocessable, match="zstd"):
        wire.decompress(b"not zstd at all")
    monkeypatch.setattr(wire, "MAX_BODY_BYTES", 2999)
    with pytest.raises(Unprocessable, match="2999"):
        wire.decompress(packed)


@settings(max_examples=300)
@given(st.binary(max_size=300))
def test_random_bytes_are_decoded_or_refused(body: bytes) -> None:
    try:
        decode(body)
    except ServiceError as error:
        assert 400 <= error.status < 500


@settings(max_examples=300)
@given(st.data())
def test_damaged_messages_are_decoded_or_refused(data: st.DataObject) -> None:
    import torch

    whole = bytearray(
        encode(
            [
                datum([1, 2, 3], target_tokens=[2, 3, 4], weights=[1.0, 1.0, 1.0]),
                datum([5], target_tokens=torch.eye(4, dtype=torch.int64)),
            ]
        )
    )
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(whole[: data.draw(st.integers(0, len(whole)))]))
    except ServiceError as error:
        assert 400 <= error.status < 500


def test_forward_backward_output_is_what_the_sdk_reads() -> None:
    outputs = [
        {"logprobs": np.asarray([-1.0, -2.0]), "elementwise_loss": np.asarray([1.0, 0.0])},
        {"logprobs": np.asarray([-3.0]), "elementwise_loss": np.asarray([3.0])},
        {"logprobs": np.ones((2, 3)), "elementwise_loss": np.ones((2, 3))},
    ]
    sent = ForwardBackwardResult(outputs=outputs, metrics={"loss:sum": 4.0})
    read = deserialize_forward_backward_output(wire.encode_forward_backward(sent))
    assert read.metrics == {"loss:sum": 4.0}
    assert len(read.loss_fn_outputs) == 3
    for expected, found in zip(outputs, read.loss_fn_outputs, strict=True):
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name].to_numpy(), array.astype(np.float32))


def test_a_sample_is_what_the_sdk_reads() -> None:
    table = TopK(np.asarray([[1, 2], [3, 4]]), np.asarray([[-0.5, -1.0], [-0.1, -9.0]]))
    sent = SamplingResult(
        sequences=[
            SampledTokens(np.asarray([7, 8]), np.asarray([-0.1, -0.2]), "stop", table),
            SampledTokens(np.asarray([9]), np.asarray([-0.3]), "length"),
        ],
        prompt_logprobs=np.asarray([np.nan, -1.5]),
        topk_prompt_logprobs=table,
        target_prompt_logprobs=np.asarray([[-1.0, 0.0]]),
        alt_tokens=(np.asarray([[5]]), np.asarray([[-2.0]])),
    )
    read = deserialize_sample_response(wire.encode_sample(sent))
    first, second = read.sequences
    assert (first.tokens, first.stop_reason) == ([7, 8], "stop")
    assert (second.tokens, second.stop_reason) == ([9], "length")
    assert read.prompt_logprobs == [None, pytest.approx(-1.5)]
    assert read.topk_prompt_logprobs is not None
    assert read.target_prompt_logprobs is not None
    assert read.target_prompt_logprobs.to_numpy().tolist() == [[-1.0, 0.0]]
    assert read.prompt_alt_tokens is not None
    assert read.prompt_alt_tokens.tokens.to_numpy().tolist() == [[5]]


def test_a_sparse_request_gets_a_sparse_reply() -> None:
    scores = np.asarray([[0.0, -1.0, 0.0], [0.0, 0.0, 0.0], [-2.0, 0.0, -3.0]])
    indices = (np.asarray([0, 1, 1, 3]), np.asarray([1, 0, 2]))
    sent = SamplingResult(target_prompt_logprobs=scores)
    read = deserialize_sample_response(wire.encode_sample(sent, indices)).target_prompt_logprobs
    assert read is not None
    assert read.sparse_crow_indices == [0, 1, 1, 3]
    np.testing.assert_array_equal(read.to_numpy(), scores.astype(np.float32))
