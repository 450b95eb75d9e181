"""What the measured costs mean: thresholds with their reasons, and the causes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from tinkerlab.diagnosis.findings import Diagnosis, Finding
from tinkerlab.diagnosis.serialization.measure import Costs
from tinkerlab.diagnosis.serialization.sources import Source

# Measured for 4 x 8,192 tokens with protobuf's C implementation: conversion 0.4-1.0 ms and
# SerializeToString 0.1-1.1 ms, building the datums 1-12 ms; a sample request of 32,768 tokens
# 3-6 ms as JSON. Fifty milliseconds is some 25 times that, and while they pass the SDK's loop
# neither sends nor receives anything. Larger batches are allowed more in proportion.
LIMIT_MS = 50.0
REFERENCE_TOKENS = 4 * 8192
# The script's own thread builds the datums, with nothing of the SDK waiting for it directly.
BUILD_LIMIT_MS = 100.0
# A healthy token is a target of 8 bytes, a weight of 4 and an id of 4.
FEW_TOKENS_A_PIECE = 4
MANY_PIECES = 1000


def judge(costs: Costs, source: Source) -> Diagnosis:
    return Diagnosis(
        healthy=(
            f"a training step takes {costs.convert + costs.serialize:.1f} ms to serialize "
            f"(limit {_limit(costs.tokens):.0f} ms), a sample request "
            f"{costs.dump + costs.encode:.1f} ms (limit {_limit(costs.prompt_tokens):.0f} ms)"
        ),
        checked={"datums": costs.datums, "tokens": costs.tokens},
        findings=[*_findings(costs, source)],
        notes=[*_notes(costs, source)],
        details={"milliseconds_and_sizes": asdict(costs)},
    )


def _limit(tokens: int) -> float:
    return LIMIT_MS * max(1.0, tokens / REFERENCE_TOKENS)


def _findings(costs: Costs, source: Source) -> Iterator[Finding]:
    slow_train = costs.convert + costs.serialize > _limit(costs.tokens)
    slow_json = costs.dump + costs.encode > _limit(costs.prompt_tokens)
    pieces = _many_pieces(costs)
    if pieces:
        yield _token_chunks(costs, slow_train or slow_json)
    if costs.protobuf == "python":
        yield _pure_python(costs, slow_train)
    large = costs.largest > costs.chunk_bytes
    if large:
        yield _large(costs, slow_train)
    # The general causes only where no particular one explains them.
    if slow_train and not (pieces or large or costs.protobuf == "python"):
        yield _slow_train(costs)
    if slow_json and not pieces:
        yield _slow_json(costs)
    if not (source.renders or pieces) and costs.build > BUILD_LIMIT_MS * max(
        1.0, costs.tokens / REFERENCE_TOKENS
    ):
        yield _slow_build(costs)


def _many_pieces(costs: Costs) -> bool:
    return costs.pieces >= MANY_PIECES and costs.tokens < FEW_TOKENS_A_PIECE * costs.pieces


def _train_ms(costs: Costs) -> str:
    return (
        f"conversion to protobuf {costs.convert:.1f} ms + SerializeToString "
        f"{costs.serialize:.1f} ms, for {costs.tokens:,} tokens; limit {_limit(costs.tokens):.0f} ms"
    )


def _token_chunks(costs: Costs, slow: bool) -> Finding:
    return Finding(
        "one-token-chunks",
        f"prompts are cut into {costs.pieces:,} chunks for {costs.tokens:,} tokens, and each chunk "
        "is a message of its own",
        evidence=(
            f"building the datums {costs.build:.1f} ms",
            _train_ms(costs),
            f"a sample request cut like this: {costs.dump + costs.encode:.1f} ms of JSON",
        ),
        fix="ModelInput.from_ints(tokens) puts a run of tokens into one chunk; append to the list "
        "of ids, not to the ModelInput, token by token",
        severity="problem" if slow or costs.build > BUILD_LIMIT_MS else "warning",
    )


def _pure_python(costs: Costs, slow: bool) -> Finding:
    return Finding(
        "pure-python-protobuf",
        "protobuf runs in its pure Python implementation",
        where="PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION",
        evidence=("api_implementation.Type() is 'python' (usual: 'upb')", _train_ms(costs)),
        fix="unset PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION; if it is not set, reinstall protobuf as "
        "a wheel for this platform: python -m pip install --force-reinstall protobuf",
        # Tokens travel as bytes, so that plain batches are hardly slower; many messages are.
        severity="problem" if slow else "warning",
    )


def _large(costs: Costs, slow: bool) -> Finding:
    return Finding(
        "oversized-datum",
        f"a single datum is {costs.largest / 1e6:.1f} MB, more than the {costs.chunk_bytes / 1e6:.0f} "
        "MB that a request should hold, and a datum is never split",
        evidence=(
            f"{costs.bytes / max(costs.tokens, 1):.0f} bytes a token; a plain target needs 16",
            f"{costs.bytes / 1e6:.1f} MB in {costs.chunks} requests, {costs.compressed / 1e6:.2f} MB "
            "with zstd",
            _train_ms(costs),
        ),
        fix="send fewer targets a token, or shorter sequences; 2-D targets and weights that are mostly "
        "zero are sent sparse when they are torch tensors",
    )


def _slow_train(costs: Costs) -> Finding:
    return Finding(
        "slow-serialization",
        f"a training step takes {costs.convert + costs.serialize:.0f} ms to serialize, and the "
        "SDK's event loop stands still meanwhile",
        evidence=(_train_ms(costs), f"protobuf implementation: {costs.protobuf}"),
        fix="compare with the default batch (no options): if that is slow too, it is the "
        "installation or a busy machine; if not, it is the shape of these datums",
        then="python scripts/doctor.py",
    )


def _slow_json(costs: Costs) -> Finding:
    return Finding(
        "slow-json",
        f"a sample request takes {costs.dump + costs.encode:.0f} ms to become JSON",
        evidence=(
            f"pydantic's model_dump {costs.dump:.1f} ms + json.dumps {costs.encode:.1f} ms, for "
            f"{costs.prompt_tokens:,} tokens; limit {_limit(costs.prompt_tokens):.0f} ms",
        ),
        fix="look at pydantic's version (a 2.13 beta was slow here; 2.13.0 and later are not)",
        then="python scripts/doctor.py",
    )


def _slow_build(costs: Costs) -> Finding:
    return Finding(
        "slow-datum-build",
        f"building the datums takes {costs.build:.0f} ms a step, far more than sending them",
        evidence=(
            f"{costs.build:.1f} ms for {costs.tokens:,} tokens; with numpy arrays 1-12 ms",
            *(f"{ms:.0f} ms in {calls:,} calls of {name}" for name, calls, ms in costs.slowest),
        ),
        fix="give whole arrays: loss_fn_inputs from numpy arrays or one torch tensor each, never a "
        "list of scalars; build ahead of the loop or while a step is in flight",
    )


def _notes(costs: Costs, source: Source) -> Iterator[str]:
    yield f"measured: {source.label}; medians"
    yield f"building the datums {costs.build:.1f} ms{' (with rendering)' if source.renders else ''}"
    yield _train_ms(costs)
    yield (
        f"zstd {costs.compress:.1f} ms, {costs.bytes:,} -> {costs.compressed:,} bytes; the SDK "
        "compresses when the service asks for it, in a thread"
    )
    yield (
        f"{costs.chunks} request{'s' if costs.chunks != 1 else ''} (at most {costs.chunk_datums:,} "
        f"datums or {costs.chunk_bytes / 1e6:.0f} MB each, unless the service says otherwise)"
    )
    yield (
        f"sample request of {costs.prompt_tokens:,} tokens: {costs.dump:.1f} ms model_dump + "
        f"{costs.encode:.1f} ms JSON"
    )
    yield f"protobuf implementation: {costs.protobuf}"
