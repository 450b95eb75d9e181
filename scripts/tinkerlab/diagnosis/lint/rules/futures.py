"""Coroutines taken for futures, futures taken for clients, results read wrongly."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from tinkerlab.diagnosis.lint import sdk
from tinkerlab.diagnosis.lint.program import Program
from tinkerlab.diagnosis.lint.rules.base import Hit, is_async, line, receiver_text, seen, text
from tinkerlab.diagnosis.lint.values import NOTHING, Event, Value

INPUTS = {"advantages", "logprobs", "weights", "mask", "target_tokens", "rewards", "returns"}


def coroutine_call(value: Value) -> tuple[ast.Call, str] | None:
    """The call and method of a coroutine of the SDK's; None for the script's own."""
    if value.kind == "coroutine" and value.data and value.data[0] == "sdk":
        return value.data[1], value.data[3]
    return None


def coroutine_result(program: Program) -> Iterator[Hit]:
    """``.result()`` of a coroutine, which has none; nothing was submitted."""
    for event in program.events:
        if event.what == "misused" and event.method in ("result", "result_async", "done"):
            call = coroutine_call(event.value)
            if call is None:
                made = event.value.data[1] if event.value.data else event.node
                name, fix = "an async function", f"await {text(made)}"
            else:
                made, name = call[0], f"{call[1]}_async"
                fix = f"f = {text(made)}, which returns a future at once; later f.result()"
            yield Hit(
                "coroutine-result",
                event.node,
                f".{event.method}() of the coroutine that {name} returns: AttributeError, and "
                "nothing was submitted",
                fix,
                (seen(program, made, "the coroutine"),),
            )


def coroutine_dropped(program: Program) -> Iterator[Hit]:
    """A coroutine of the SDK's that nobody awaits: the request is never sent."""
    for event in program.events:
        if event.what != "dropped":
            continue
        call = coroutine_call(event.value)
        if call is not None:
            yield Hit(
                "coroutine-never-awaited",
                event.node,
                f"{call[1]}_async gives a coroutine and nothing awaits it: nothing is submitted",
                f"{text(call[0])}, which submits at once; keep the future and wait for it later",
            )


def deprecated_async(program: Program) -> Iterator[Hit]:
    """The ``*_async`` methods, all deprecated in tinker 0.38: one finding for each method."""
    places: dict[str, list[Event]] = defaultdict(list)
    for event in program.events:
        method = event.method if event.what == "call" else ""
        if method.startswith("@sdk.") and method.endswith("_async"):
            places[method.rsplit(".", 1)[-1]].append(event)
    for name, events in places.items():
        lines = sorted({line(event.node) for event in events})
        base = name.removesuffix("_async")
        call = text(events[0].node)
        how = (
            f"f = {call}; submit what follows; then await f"
            if base in sdk.ENQUEUED_BY_ASYNC
            else f"await {call}"
        )
        yield Hit(
            "deprecated-async",
            events[0].node,
            f"{name} is deprecated since tinker 0.38 and will be removed",
            f"{base} returns a future at once: {how}",
            (f"lines {', '.join(map(str, lines))}",) if len(lines) > 1 else (),
            severity="warning",
            advice=True,
        )


def deprecated_call(program: Program) -> Iterator[Hit]:
    """Methods that the SDK has moved elsewhere."""
    for event in program.events:
        if event.what != "call" or not event.method.startswith("@sdk."):
            continue
        _, kind, name = event.method.split(".")
        instead = sdk.DEPRECATED.get((kind, name.removesuffix("_async")))
        if instead:
            yield Hit(
                "deprecated-call",
                event.node,
                f"{name} is deprecated in tinker 0.38",
                f"use {instead}",
                severity="warning",
                advice=True,
            )


def client_future(program: Program) -> Iterator[Hit]:
    """The future of a client, used as if it were the client."""
    told: set[int] = set()
    for event in program.events:
        if event.what != "unresolved" or event.value.call is None:
            continue
        made = event.value.call.node
        if line(made) in told:
            continue
        told.add(line(made))
        written = text(made)
        fix = f"await {written}" if is_async(event.value.call) else f"{written}.result()"
        yield Hit(
            "client-future-unresolved",
            made,
            f"{event.value.call.method} returns a future of the client; using it as the client "
            "is deprecated and waits in secret at the first use",
            fix,
            (seen(program, event.node, "used as the client"),),
            severity="warning",
            advice=True,
        )


def loss_attribute(program: Program) -> Iterator[Hit]:
    """``.loss`` of a forward_backward result, which has metrics and loss_fn_outputs."""
    for event in program.events:
        if event.what != "attribute" or event.value.kind != "output":
            continue
        if event.method in ("loss", "losses", "loss_value", "total_loss"):
            holder = (
                ast.unparse(event.node.value)
                if isinstance(event.node, (ast.Attribute, ast.Subscript))
                else "result"
            )
            yield Hit(
                "loss-attribute",
                event.node,
                f"the result of forward_backward has no .{event.method}: AttributeError",
                f'{holder}.metrics["loss:sum"] is the sum over tokens, weighted; per token: '
                f"{holder}.loss_fn_outputs",
            )


def tensor_in_loss_config(program: Program) -> Iterator[Hit]:
    """Tensors, or anything per token, given as ``loss_fn_config``."""
    for event in program.events:
        if event.what != "submit" or event.method not in ("forward_backward", "forward"):
            continue
        config = event.args.get("loss_fn_config", event.args.get(2, NOTHING))
        if not isinstance(config.items, dict):
            continue
        wrong = [
            key
            for key, value in config.items.items()
            if value.kind in ("tensor", "list") or key in INPUTS
        ]
        if wrong:
            names = ", ".join(repr(key) for key in wrong)
            yield Hit(
                "tensor-in-loss-config",
                event.node,
                f"loss_fn_config takes numbers and strings; {names} belongs to each datum",
                f"put {names} into every Datum's loss_fn_inputs as TensorData, one value for "
                "each target token; leave only numbers in loss_fn_config",
                (f"{receiver_text(event.node)}.{event.method} gets loss_fn_config with {names}",),
            )
