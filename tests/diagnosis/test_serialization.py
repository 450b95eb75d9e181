"""serialization_test.py: what it measures is what the SDK sends, and each cause can fire."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tinker

import serialization_test
from tinkerlab.diagnosis.serialization import measure, sources
from tinkerlab.diagnosis.serialization.judge import BUILD_LIMIT_MS, LIMIT_MS, judge
from tinkerlab.diagnosis.serialization.measure import Costs
from tinkerlab.errors import InputError

SMALL = ["--batch", "2", "--length", "64", "--prompt-length", "64", "--repeats", "1", "--json"]


def run(capsys, *argv: str) -> tuple[int, dict]:
    code = serialization_test.main([*SMALL, *argv])
    return code, json.loads(capsys.readouterr().out)


def test_a_plain_batch_is_healthy(capsys):
    code, document = run(capsys)
    assert code == 0 and document["findings"] == []
    assert document["checked"] == {"datums": 2, "tokens": 128}
    assert any("protobuf implementation" in note for note in document["notes"])


def test_sizes_are_those_of_the_request_that_the_sdk_sends(rehearsal):
    """The same datums through the real client: its body has the measured size."""
    sent: list[int] = []
    service = rehearsal.client()
    client = service.create_lora_training_client(rehearsal.model, rank=4).result()
    with pytest.MonkeyPatch.context() as patch:
        from tinker.resources import training

        resource: Any = training
        real = resource.forward_backward_request_to_proto

        def watched(request):
            message = real(request)
            sent.append(len(message.SerializeToString()))
            return message

        patch.setattr(resource, "forward_backward_request_to_proto", watched)
        inputs = {"target_tokens": np.arange(8), "weights": np.ones(8, np.float32)}
        datum = tinker.Datum(
            model_input=tinker.ModelInput.from_ints(list(range(8))), loss_fn_inputs=inputs
        )
        client.forward_backward([datum] * 3, "cross_entropy").result()
    measured = measure.measure(lambda: [datum] * 3, 1, 8)
    # The model's id and the loss function's name are all that differs.
    assert len(sent) == 1 and abs(sent[0] - measured.bytes) < 100
    assert measured.chunks == 1


@pytest.mark.parametrize(
    ("sizes", "chunks"),
    [([10], 1), ([60, 60], 2), ([40, 40, 40], 2), ([200, 10], 2), ([1] * 11, 3), ([200] * 3, 3)],
)
def test_batches_are_cut_as_the_sdk_cuts_them(sizes, chunks, monkeypatch):
    from types import SimpleNamespace

    from tinker.lib.public_interfaces import training_client

    monkeypatch.setattr(training_client, "_estimate_datum_bytes_count_proto", lambda size: size)
    config = SimpleNamespace(fwdbwd_max_chunk_bytes_count=100, fwdbwd_max_chunk_len=5)
    client = SimpleNamespace(holder=SimpleNamespace(_client_config=config))
    generator = training_client.TrainingClient._chunked_requests_generator
    assert len(list(generator(client, sizes))) == chunks  # type: ignore[arg-type]
    assert measure._chunks(sizes, 100, 5) == chunks


@pytest.mark.parametrize("form", sorted(sources.FORMS))
def test_every_form_says_the_same(form):
    plain = sources.made(1, 8, "numpy").build()[0]
    made = sources.made(1, 8, form).build()[0]
    assert made.model_input.to_ints() == plain.model_input.to_ints()
    for name in ("target_tokens", "weights"):
        assert made.loss_fn_inputs[name].data == plain.loss_fn_inputs[name].data


def costs(**changes) -> Costs:
    healthy = {
        "datums": 4,
        "tokens": 32768,
        "pieces": 4,
        "build": 5.0,
        "convert": 1.0,
        "serialize": 1.0,
        "dump": 4.0,
        "prompt_tokens": 32768,
        "largest": 131_072,
        "bytes": 524_612,
        "chunks": 1,
        "chunk_bytes": 5_000_000,
        "chunk_datums": 1024,
        "protobuf": "upb",
    }
    return Costs(**{**healthy, **changes})


@pytest.mark.parametrize(
    ("changes", "causes"),
    [
        ({}, []),
        ({"convert": LIMIT_MS - 2}, []),
        ({"convert": LIMIT_MS + 1}, ["slow-serialization"]),
        ({"serialize": LIMIT_MS + 1}, ["slow-serialization"]),
        ({"convert": LIMIT_MS + 1, "tokens": 3 * 32768}, []),  # three times the batch
        ({"dump": LIMIT_MS + 1}, ["slow-json"]),
        ({"build": BUILD_LIMIT_MS - 1}, []),
        ({"build": BUILD_LIMIT_MS + 1}, ["slow-datum-build"]),
        ({"largest": 5_000_001}, ["oversized-datum"]),
        ({"largest": 5_000_001, "serialize": 60.0}, ["oversized-datum"]),
        ({"pieces": 32768}, ["one-token-chunks"]),
        ({"pieces": 900, "tokens": 1800}, []),  # images between words
        ({"protobuf": "python"}, ["pure-python-protobuf"]),
        ({"protobuf": "python", "convert": 60.0}, ["pure-python-protobuf"]),
    ],
)
def test_causes(changes, causes):
    diagnosis = judge(costs(**changes), sources.Source(list, "made up"))
    assert [finding.cause for finding in diagnosis.findings] == causes


def test_pure_python_is_a_problem_only_where_it_costs():
    for convert, severity in ((1.0, "warning"), (60.0, "problem")):
        diagnosis = judge(costs(protobuf="python", convert=convert), sources.Source(list, ""))
        assert diagnosis.findings[0].severity == severity


def test_rendering_is_not_held_against_the_datums():
    source = sources.Source(list, "rows", renders=True)
    assert judge(costs(build=5000.0), source).findings == []


def test_a_slow_builder_is_told_which_function(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text(
        "import time, numpy as np, tinker\n"
        "def tokenize():\n    time.sleep(0.12)\n    return list(range(8))\n"
        "def make_batch():\n"
        "    inputs = {'target_tokens': np.arange(8), 'weights': np.ones(8, np.float32)}\n"
        "    prompt = tinker.ModelInput.from_ints(tokenize())\n"
        "    return [tinker.Datum(model_input=prompt, loss_fn_inputs=inputs)]\n"
    )
    code, document = run(capsys, "--builder", f"{script}:make_batch")
    assert code == 1
    (finding,) = document["findings"]
    assert finding["cause"] == "slow-datum-build"
    assert "time.sleep" in finding["evidence"][1]


def test_rows_of_a_file_are_rendered(tmp_path, capsys):
    rows = [
        {"messages": [{"role": r, "content": "hi"} for r in ("user", "assistant")]}
        for _ in range(3)
    ]
    data = tmp_path / "chats.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, document = run(capsys, "--data", str(data), "--model", "tiny:llama")
    assert code == 0 and document["checked"]["datums"] == 2
    assert any("with rendering" in note for note in document["notes"])


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (None, "is not a file"),
        ("def make_batch(:\n", "SyntaxError"),
        ("import nothing_of_that_name\n", "ModuleNotFoundError"),
        ("make_batch = 3\n", "no function make_batch"),
        ("def make_batch():\n    return [1]\n", "list of tinker.Datum"),
        ("def make_batch():\n    return []\n", "list of tinker.Datum"),
        ("def make_batch():\n    raise ValueError('no data')\n", "ValueError: no data"),
        (b"\x00\xff", "importing it fails"),
    ],
)
def test_bad_builders_are_refused_in_a_line(tmp_path, code, message):
    script = tmp_path / "train.py"
    if code is not None:
        script.write_bytes(code if isinstance(code, bytes) else code.encode())
    with pytest.raises(InputError, match=message) as refused:
        serialization_test.main(["--builder", f"{script}:make_batch"])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--batch", "0"], "at least 1"),
        (["--data", "x.jsonl"], "needs --model"),
        (["--data", "x.jsonl", "--builder", "a.py:f"], "not both"),
        (["--builder", "train.py"], "FILE.py:FUNCTION"),
        (["--data", "missing.jsonl", "--model", "tiny:llama"], "missing.jsonl"),
        (["--builder", ".:f"], "is not a file"),
    ],
)
def test_bad_options_are_refused_in_a_line(argv, message):
    with pytest.raises(InputError, match=message):
        serialization_test.main(argv)
