"""Bad input is refused with the service's status and a reason; nothing makes it answer 500."""

from __future__ import annotations

import json
import uuid
from typing import Any

import httpx
import pytest
import tinker
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tinker import types
from tinker.proto.request_conv import forward_backward_request_to_proto

HEADERS = {"X-API-Key": "tml-x"}


@pytest.fixture(scope="module")
def http(rehearsal) -> httpx.Client:
    return httpx.Client(base_url=f"{rehearsal.base_url}/api/v1", headers=HEADERS, timeout=60)


@pytest.fixture(scope="module")
def training(rehearsal) -> tinker.TrainingClient:
    return rehearsal.client().create_lora_training_client(rehearsal.model, rank=2).result()


@pytest.fixture(scope="module")
def session_id(training) -> str:
    return training.model_id.split(":train:")[0]


def post(http: httpx.Client, route: str, body: Any) -> httpx.Response:
    return http.post(f"/{route}", json=body)


@pytest.mark.parametrize("headers", [{}, {"X-API-Key": ""}, {"X-API-Key": "sk-other"}])
def test_401_without_a_key(rehearsal, headers: dict[str, str]) -> None:
    reply = httpx.get(f"{rehearsal.base_url}/api/v1/get_server_capabilities", headers=headers)
    assert reply.status_code == 401
    assert "TINKER_API_KEY" in reply.json()["detail"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"base_model": "no/such-model"}, "not served here"),
        ({"lora_config": {"rank": 0}}, "rank"),
        ({"lora_config": {"rank": -3}}, "rank"),
        ({"lora_config": None}, "LoRA"),
        (
            {
                "lora_config": {
                    "rank": 2,
                    "train_attn": False,
                    "train_mlp": False,
                    "train_unembed": False,
                }
            },
            "nothing to train",
        ),
        ({"optimizer_config": {"type": "dimuon", "version": 1}}, "dimuon"),
    ],
)
def test_400_for_a_model_that_cannot_be_created(
    rehearsal, http, session_id, change: dict, complaint: str
) -> None:
    body = {
        "session_id": session_id,
        "model_seq_id": 1000,
        "base_model": rehearsal.model,
        "lora_config": {"rank": 2},
        **change,
    }
    reply = post(http, "create_model", body)
    assert reply.status_code == 400
    assert complaint in reply.json()["detail"]


def datum(tokens: list[int], **inputs) -> tinker.Datum:
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(tokens), loss_fn_inputs=inputs)


@pytest.mark.parametrize(
    ("data", "loss_fn", "complaint"),
    [
        ([datum([])], "cross_entropy", "empty"),
        ([datum([1, 2], target_tokens=[1])], "cross_entropy", r"data\[0\]|datum 0"),
        (
            [datum([1, 2], target_tokens=[1, 2], weights=[1.0])],
            "cross_entropy",
            r"data\[0\]|datum 0",
        ),
        ([datum([1, 2])], "cross_entropy", "target_tokens"),
        ([datum([1], target_tokens=[10**6])], "cross_entropy", "vocabulary"),
        ([datum([1], target_tokens=[1])], "nonsense", "nonsense"),
        ([datum([1], target_tokens=[1])], "stable_reinforce", "stable_reinforce"),
        ([datum([1], target_tokens=[1])], "importance_sampling", "logprobs|advantages"),
    ],
)
def test_400_for_bad_training_data_and_the_client_can_be_told_so(
    http, training, data: list, loss_fn: str, complaint: str
) -> None:
    import re

    request = types.ForwardBackwardRequest(
        forward_backward_input=types.ForwardBackwardInput(data=data, loss_fn=loss_fn),  # type: ignore[arg-type]
        model_id=training.model_id,
        seq_id=10_000,
    )
    body = forward_backward_request_to_proto(request).SerializeToString()
    reply = http.post(
        "/forward_backward", content=body, headers={"Content-Type": "application/x-protobuf"}
    )
    assert reply.status_code == 400, reply.text
    assert re.search(complaint, reply.json()["detail"])


def test_the_sdk_raises_the_refusal_and_a_refused_request_blocks_nothing(rehearsal) -> None:
    client = rehearsal.client().create_lora_training_client(rehearsal.model, rank=2).result()
    with pytest.raises(tinker.BadRequestError, match="vocabulary"):
        client.forward_backward([datum([1], target_tokens=[10**6])], "cross_entropy").result()
    good = [datum([1, 2], target_tokens=[2, 3], weights=[1.0, 1.0])]
    assert client.forward_backward(good, "cross_entropy").result().metrics["loss:sum"] > 0


@pytest.mark.parametrize(
    ("params", "prompt", "complaint"),
    [
        ({"max_tokens": 10**6}, [1, 2], "context window"),
        ({"max_tokens": 0}, [1], "max_tokens"),
        ({"temperature": -1}, [1], "temperature"),
        ({"top_p": 0}, [1], "top_p"),
        ({"top_k": 0}, [1], "top_k"),
        ({"stop": [""]}, [1], "empty string"),
        ({}, [], "prompt is empty"),
        ({}, [10**6], "vocabulary"),
        ({}, [-1], "vocabulary"),
    ],
)
def test_400_for_a_sample_that_makes_no_sense(
    rehearsal, http, params: dict, prompt: list[int], complaint: str
) -> None:
    body = {
        "base_model": rehearsal.model,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": prompt}] if prompt else []},
        "sampling_params": params,
    }
    reply = post(http, "asample", body)
    assert reply.status_code == 400, reply.text
    assert complaint in reply.json()["detail"]


def test_404_for_what_does_not_exist(http) -> None:
    assert http.get("/training_runs/nope").status_code == 404
    assert http.get("/sessions/nope").status_code == 404
    assert http.get("/samplers/nope").status_code == 404
    assert http.delete("/training_runs/x/checkpoints/weights/nope").status_code == 404
    assert post(http, "retrieve_future", {"request_id": "nope"}).status_code == 404
    assert post(http, "optim_step", {"model_id": "nope", "adam_params": {}}).status_code == 404
    missing = {"tinker_path": "tinker://r/weights/nope"}
    assert post(http, "weights_info", missing).status_code == 404
    reply = http.get("/nonsense")
    assert reply.status_code == 404
    assert "/nonsense" in reply.json()["detail"]
    assert "not supported" in http.get("/billing/usage/events").json()["detail"]


def test_400_for_a_path_of_the_wrong_kind(http, training, session_id) -> None:
    name = uuid.uuid4().hex
    state = training.save_state(name).result().path
    sampler = training.save_weights_for_sampler(name).result().path
    session = {"session_id": session_id, "sampling_session_seq_id": 5000}
    reply = post(http, "create_sampling_session", {**session, "model_path": state})
    assert reply.status_code == 400
    assert "Path is invalid" in reply.json()["detail"]
    load = {"session_id": session_id, "model_seq_id": 5000, "path": sampler, "optimizer": True}
    reply = post(http, "load_weights", load)
    assert reply.status_code == 400
    assert "Path is invalid" in reply.json()["detail"]


def test_409_for_a_name_that_exists(http, training) -> None:
    """Raw, because the SDK retries a 409 for five minutes."""
    name = uuid.uuid4().hex
    training.save_state(name).result()
    body = {"model_id": training.model_id, "path": name, "seq_id": 20_000}
    reply = post(http, "save_weights", body)
    assert reply.status_code == 409
    assert f"Checkpoint '{name}' already exists" in reply.json()["detail"]
    reply = post(http, "save_weights", {**body, "path": "again", "ttl_seconds": 60})
    assert reply.status_code == 400
    assert "3600" in reply.json()["detail"]


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("create_session", {"tags": "not a list"}),
        ("create_model", {}),
        ("asample", {"prompt": 3}),
        ("optim_step", {"model_id": 5}),
        ("load_weights", {"path": "x", "optimizer": True}),
        ("sessions/x/finish", {"reason": {"type": "vanished"}}),
        (
            "create_session",
            {"unknown_field": 1, "tags": [], "user_metadata": {}, "sdk_version": ""},
        ),
    ],
)
def test_422_for_fields_of_another_type(http, route: str, body: dict) -> None:
    reply = post(http, route, body)
    assert reply.status_code == 422
    assert reply.json()["detail"]


def test_422_for_bodies_that_are_no_json_and_no_protobuf(http) -> None:
    for content in (b"{", b"[1]", b'{"a": NaN}', b"\xff\xfe", b"[" * 100_000):
        reply = http.post("/create_session", content=content)
        assert reply.status_code == 422, content[:20]
    proto = {"Content-Type": "application/x-protobuf"}
    assert http.post("/forward_backward", content=b"\xff" * 9, headers=proto).status_code == 422
    zstd = {**proto, "Content-Encoding": "zstd"}
    assert http.post("/forward_backward", content=b"plain", headers=zstd).status_code == 422
    assert http.post("/forward_backward", json={}).status_code == 422


ROUTES = [
    "client/config",
    "create_session",
    "session_heartbeat",
    "create_model",
    "get_info",
    "optim_step",
    "save_weights",
    "save_weights_for_sampler",
    "save_weights_external",
    "load_weights",
    "create_custom_loss",
    "create_sampling_session",
    "join_sampling_session",
    "asample",
    "cancel_future",
    "retrieve_future",
    "weights_info",
    "copy_weights",
    "sessions/search",
    "sessions/x/finish",
]

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
# Fields that the routes know, so that many inputs get past the first check.
KNOWN = st.fixed_dictionaries(
    {},
    optional={
        "session_id": SCALARS,
        "model_id": SCALARS,
        "model_seq_id": st.integers(-2, 2**65),
        "seq_id": st.integers(-2, 2**65),
        "base_model": st.sampled_from(["tiny:llama", "x", ""]),
        "path": st.text(max_size=12),
        "optimizer": st.booleans(),
        "request_id": SCALARS,
        "num_samples": st.integers(-1, 3),
        "prompt": st.just({"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]})
        | st.builds(
            lambda tokens: {"chunks": [{"type": "encoded_text", "tokens": tokens}]},
            st.lists(st.integers(-(2**40), 2**70), max_size=3),
        ),
        "sampling_params": st.fixed_dictionaries(
            {},
            optional={
                "max_tokens": st.integers(-1, 3),
                "temperature": st.floats(-1, 3),
                "top_p": st.floats(-1, 2),
                "top_k": st.integers(-2, 2**70),
                "seed": st.integers(-(2**70), 2**70),
                "stop": JSON,
            },
        ),
        "target_prompt_logprobs": st.fixed_dictionaries(
            {
                "data": st.lists(st.integers(-2, 2**70), max_size=4),
                "dtype": st.sampled_from(["int64", "float32"]),
                "shape": st.lists(st.integers(-2, 2**40), max_size=3),
            },
            optional={
                "sparse_crow_indices": st.lists(st.integers(-2, 2**70), max_size=3),
                "sparse_col_indices": st.lists(st.integers(-2, 2**70), max_size=3),
            },
        ),
        "prompt_alt_tokens_k": st.integers(-1, 3),
        "topk_prompt_logprobs": st.integers(-1, 2**70),
        "prompt_logprobs": st.booleans(),
        "prompt_logprobs_last_n": st.integers(-1, 3),
    },
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(route=st.sampled_from(ROUTES), body=st.one_of(JSON, KNOWN))
def test_no_json_makes_it_answer_500_or_die(http: httpx.Client, route: str, body: Any) -> None:
    reply = http.post(f"/{route}", content=json.dumps(body).encode("utf-8", "surrogatepass"))
    assert reply.status_code < 500, (reply.status_code, reply.text)
    if route == "asample" and reply.status_code == 200:
        result = post(http, "retrieve_future", {"request_id": reply.json()["request_id"]})
        assert result.status_code == 200
        if result.headers["content-type"].startswith("application/json"):
            assert result.json().get("category") != "server", result.text


@settings(max_examples=100, deadline=None)
@given(body=st.binary(max_size=200), encoded=st.booleans())
def test_no_protobuf_makes_it_answer_500_or_die(
    http: httpx.Client, body: bytes, encoded: bool
) -> None:
    headers = {"Content-Type": "application/x-protobuf"}
    if encoded:
        headers["Content-Encoding"] = "zstd"
    reply = http.post("/forward_backward", content=body, headers=headers)
    assert 400 <= reply.status_code < 500
    assert http.get("/healthz").json() == {"status": "ok"}
