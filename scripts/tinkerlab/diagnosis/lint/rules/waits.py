"""Waiting for one call before the next is submitted."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from tinkerlab.diagnosis.lint import sdk
from tinkerlab.diagnosis.lint.program import Program
from tinkerlab.diagnosis.lint.rules.base import (
    Hit,
    decides,
    depends,
    is_async,
    seen,
    text,
)
from tinkerlab.diagnosis.lint.values import Event, place

# After waiting for the left, submitting one of the right shows that the wait came too early.
NEXT = {
    "forward_backward": {"forward_backward", "forward_backward_custom", "optim_step"},
    "forward_backward_custom": {"forward_backward", "forward_backward_custom", "optim_step"},
    "forward": {"forward"},
}


def wait_before_submit(program: Program) -> Iterator[Hit]:
    """A wait for a gradient with nothing else in the queue, and then the next training call."""
    for trace in program.traces:
        outstanding: dict[Any, list[Event]] = {}
        idle: dict[Any, tuple[Event, Event]] = {}
        for event in trace:
            if event.what == "submit" and event.method in sdk.TRAINING:
                if event.client in idle:
                    wait, waited = idle.pop(event.client)
                    if event.method in NEXT.get(waited.method, ()) and not on_purpose(
                        trace, waited, wait, event
                    ):
                        yield too_early(program, waited, wait, event)
                outstanding.setdefault(event.client, []).append(event)
            elif event.what == "wait" and event.value.call is not None:
                waited = event.value.call
                queue = outstanding.get(event.client, [])
                # The service runs a client's requests in order: this one done, all before are.
                queue[:] = [other for other in queue if other.index > waited.index]
                idle.pop(event.client, None)
                if not queue:
                    idle[event.client] = (event, waited)


def on_purpose(trace: list[Event], waited: Event, wait: Event, event: Event) -> bool:
    """The next call needs the result, or is only made when the result is good enough."""
    made = place(waited.node)
    return depends(event, made) or decides(trace, made, wait.index, event.index)


def too_early(program: Program, waited: Event, wait: Event, event: Event) -> Hit:
    same = event.method == waited.method
    if is_async(wait):
        collect = "await f" if same else "await f; await o"
    else:
        collect = "f.result()" if same else "f.result(); o.result()"
    first = text(waited.node)
    if same or event.method.startswith("forward_backward"):
        fix = f"submit every call first, futures.append({first}), and wait for the futures after"
    else:
        fix = f"f = {first}; o = {text(event.node)}; only then {collect}"
    return Hit(
        "wait-before-submit",
        wait.node,
        f"waits for {waited.method} before {event.method} is submitted, so the service stands "
        "idle in between",
        fix,
        (seen(program, event.node, "submitted only after the wait"),),
    )


def late_sampler_save(program: Program) -> Iterator[Hit]:
    """A sampler save that later steps can overtake: tinker 0.38 numbers it in its own thread."""
    for trace in program.traces:
        pending: dict[Any, Event] = {}
        for event in trace:
            if event.what == "submit" and event.method == "save_weights_for_sampler":
                pending[event.client] = event
            elif event.what == "wait" and event.value.call in pending.values():
                pending.pop(event.client, None)
            elif event.what == "submit" and event.method == "optim_step":
                save = pending.pop(event.client, None)
                if save is not None:
                    yield overtaken(program, save, event)


def overtaken(program: Program, save: Event, step: Event) -> Hit:
    wait = "await" if is_async(save) else ""
    done = f"{wait} {text(save.node)}".strip() if wait else f"{text(save.node)}.result()"
    return Hit(
        "late-sampler-save",
        save.node,
        "steps submitted before this save is done may overtake it: the SDK takes the save's "
        "place in the queue later, in its own thread, so the checkpoint can hold later updates",
        f"wait for the save before submitting the next step: {done}",
        (seen(program, step.node, "submitted while the save is pending"),),
    )


def forward_without_backward(program: Program) -> Iterator[Hit]:
    """``forward`` and then ``optim_step``, with no gradient in between."""
    for trace in program.traces:
        only: dict[Any, Event] = {}
        for event in trace:
            if event.what == "handed":  # another function may compute the gradient
                only.clear()
            if event.what != "submit":
                continue
            if event.method == "forward":
                only.setdefault(event.client, event)
            elif event.method in sdk.GRADIENTS:
                only[event.client] = event
            elif event.method == "optim_step":
                before = only.pop(event.client, None)
                if before is not None and before.method == "forward":
                    yield no_gradient(program, before, event)


def no_gradient(program: Program, forward: Event, step: Event) -> Hit:
    return Hit(
        "forward-without-backward",
        forward.node,
        "forward computes no gradient, so the optim_step after it has nothing to apply",
        text(forward.node).replace(".forward(", ".forward_backward(", 1),
        (seen(program, step.node, "the step without a gradient"),),
    )


def sequential_samples(program: Program) -> Iterator[Hit]:
    """One sample at a time: each reply awaited before the next prompt is submitted."""
    for trace in program.traces:
        training = {
            loop
            for event in trace
            if event.what == "submit" and event.method in sdk.TRAINING
            for loop in event.loops
        }
        chained = {
            place(event.node)
            for event in trace
            if event.what == "submit" and depends(event, place(event.node))
        }
        for event in trace:
            if event.what != "wait" or event.method not in sdk.SAMPLING or event.how == "gather":
                continue
            call = event.value.call
            if call is None or not event.loops or call.loops != event.loops:
                continue
            loop = event.loops[-1]
            if call.iteration != event.iteration or loop in training or serial(loop):
                continue
            made = place(call.node)
            own = call.receiver.call
            if own is not None and loop in own.loops:
                continue  # each round asks a client of its own
            if made in chained or retried(event, loop) or leaves_early(trace, made, loop):
                continue
            yield one_at_a_time(program, call, event, loop)


def serial(loop: ast.AST) -> bool:
    """Loops whose rounds follow one another by their nature: turns, people, queues."""
    if isinstance(loop, ast.While):
        return "len(" not in ast.unparse(loop.test)  # an index that walks along a list
    if isinstance(loop, ast.AsyncFor):
        return True
    iterated = loop.iter if isinstance(loop, (ast.For, ast.AsyncFor)) else None
    written = ast.unparse(iterated) if iterated is not None else ""
    if isinstance(iterated, (ast.Tuple, ast.List)) and len(iterated.elts) <= 8:
        return True  # a few settings, one after the other
    target = ast.unparse(loop.target) if isinstance(loop, (ast.For, ast.AsyncFor)) else ""
    if any(word in target.lower() for word in ("turn", "hop", "attempt", "retry")):
        return True
    if "stdin" in written or "retries" in written or "attempts" in written:
        return True
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "input"
        for node in ast.walk(loop)
    )


def retried(event: Event, loop: ast.AST) -> bool:
    """A try directly inside the loop that leaves it on success is a retry, not a batch."""
    inside = event.stack[event.stack.index(loop) :]
    return any(
        isinstance(node, ast.Try)
        and any(isinstance(part, (ast.Break, ast.Return)) for part in ast.walk(node))
        for node in inside
    )


def leaves_early(trace: list[Event], made: tuple[int, int], loop: ast.AST) -> bool:
    """The loop ends as soon as a reply is good enough."""
    for event in trace:
        if event.what == "branch" and loop in event.stack and made in event.value.origins:
            body = event.node.body if isinstance(event.node, ast.If) else []
            if any(
                isinstance(part, (ast.Break, ast.Return))
                for statement in body
                for part in ast.walk(statement)
            ):
                return True
    return False


def called(event: Event) -> str:
    return text(event.node.func) if isinstance(event.node, ast.Call) else event.method


def blocking_in_async(program: Program) -> Iterator[Hit]:
    """``.result()`` in coroutines that are meant to run side by side: it blocks their loop."""
    for trace in program.traces:
        done: set[Any] = set()
        for event in trace:
            if event.what != "wait":
                continue
            call = event.value.call
            seen_before = call in done
            done.add(call)
            if event.how != "result" or seen_before or not beside_others(event):
                continue
            yield Hit(
                "blocking-result-in-async",
                event.node,
                f".result() of {event.method} blocks the event loop, so the coroutines gathered "
                "here run one after the other",
                f"await {text(call.node)}" if call is not None else "await the future",
            )


def beside_others(event: Event) -> bool:
    """Inside an async function that gather or create_task started."""
    started = False
    for node in event.stack:
        if isinstance(node, ast.Call):
            started = started or called_as(node).endswith(("gather", "create_task", "as_completed"))
        elif started and isinstance(node, ast.AsyncFunctionDef):
            return is_async(event)
    return False


def called_as(node: ast.Call) -> str:
    return ast.unparse(node.func)


def one_at_a_time(program: Program, call: Event, wait: Event, loop: ast.AST) -> Hit:
    written = text(call.node)
    if isinstance(loop, (ast.For, ast.AsyncFor)):
        each = f"for {ast.unparse(loop.target)} in {text(loop.iter)}"
    else:
        part = loop.generators[0] if hasattr(loop, "generators") else None  # type: ignore[attr-defined]
        each = f"for {ast.unparse(part.target)} in {text(part.iter)}" if part else "for ..."
    if is_async(wait):
        fix = f"replies = await asyncio.gather(*[{written} {each}])"
    else:
        fix = f"futures = [{written} {each}]; replies = [f.result() for f in futures]"
    if call.method == "sample" and "range(" in each:
        fix += ", or one call with num_samples= when the prompt is the same"
    return Hit(
        "sequential-samples",
        wait.node,
        f"one {called(call)} at a time: each is waited for before the next is submitted",
        fix,
        (seen(program, loop, "the loop"),) if hasattr(loop, "lineno") else (),
    )
