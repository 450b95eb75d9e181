"""Timeouts and retries of the script's own around calls that have theirs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tinkerlab.diagnosis.lint import sdk
from tinkerlab.diagnosis.lint.program import Program
from tinkerlab.diagnosis.lint.rules.base import Hit, decorated, line, seen, text
from tinkerlab.diagnosis.lint.values import Event

OPERATIONS = {
    "forward",
    "forward_backward",
    "forward_backward_custom",
    "optim_step",
    "save_state",
    "save_weights_for_sampler",
    "save_weights_external",
    *sdk.SAMPLING,
}
TIMERS = re.compile(r"\b(asyncio\.)?(timeout|timeout_at|wait_for|move_on_after|fail_after)\(")
RETRIES = re.compile(r"retr(y|ies)|backoff|on_exception", re.IGNORECASE)
# Exceptions by which the service or the network fails; others are the script's own affair.
FAILURES = re.compile(
    r"^(Exception|BaseException|TimeoutError|ConnectionError|OSError|(asyncio|concurrent\.futures)"
    r"\.\w*Timeout\w*|tinker\..*|\w*(API|Timeout|Connection|RateLimit|InternalServer|RequestFailed)"
    r"\w*|httpx\..*|aiohttp\..*|requests\..*)$"
)


def own_timeout(program: Program) -> Iterator[Hit]:
    """A deadline around an operation: it cancels work that the service goes on doing."""
    for event in program.events:
        if event.what != "wait" or event.method not in OPERATIONS or whole_rollout(event):
            continue
        limit = event.args.get("timeout", event.args.get(0))
        if limit is not None and not (limit.kind == "const" and limit.data is None):
            yield timed(program, event, event.node)
            continue
        for node in event.stack:
            if (isinstance(node, ast.Call) and TIMERS.search(ast.unparse(node.func) + "(")) or (
                isinstance(node, (ast.With, ast.AsyncWith))
                and any(TIMERS.search(ast.unparse(item.context_expr)) for item in node.items)
            ):
                yield timed(program, event, node)


def whole_rollout(event: Event) -> bool:
    """A limit on an episode, environment included, is the cookbook's own practice."""
    call = event.value.call
    node = call.node if call is not None else None
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith("_rollout")


def timed(program: Program, event: Event, node: ast.AST) -> Hit:
    call = event.value.call
    made = text(call.node) if call is not None else event.method
    return Hit(
        "home-made-timeout",
        node,
        f"a deadline of the script's own around {event.method}: a busy service is slower than it, "
        "and the cancelled request is lost or done twice",
        f"wait without it: await {made}; the SDK retries and gives up by itself",
        (seen(program, event.node, "the wait"),) if line(event.node) != line(node) else (),
    )


def own_retry(program: Program) -> Iterator[Hit]:
    """A retry loop or decorator around calls that the SDK retries already."""
    for event in program.events:
        if event.what not in ("submit", "wait") or event.method not in OPERATIONS:
            continue
        for node in event.stack:
            found = decorated(node, RETRIES)
            if found is not None:
                yield retried(program, event, found)
        for index, node in enumerate(event.stack):
            loops = [
                n for n in event.stack[:index] if isinstance(n, (ast.For, ast.While, ast.AsyncFor))
            ]
            if isinstance(node, ast.Try) and loops and retries(node, loops[-1]):
                yield retried(program, event, node)
        for node in event.stack:
            if isinstance(node, ast.Call) and RETRIES.search(ast.unparse(node.func)):
                yield retried(program, event, node)
            if isinstance(node, (ast.For, ast.AsyncFor)) and RETRIES.search(ast.unparse(node.iter)):
                yield retried(program, event, node)


def retries(node: ast.Try, loop: ast.AST) -> bool:
    """Whether a try inside ``loop`` makes the loop try the same thing again."""
    caught = [handler for handler in node.handlers if catches(handler) and stays(handler)]
    if not caught:
        return False
    target = ast.unparse(loop.target) if isinstance(loop, (ast.For, ast.AsyncFor)) else ""
    written = ast.unparse(loop.iter) if isinstance(loop, (ast.For, ast.AsyncFor)) else ""
    counted = re.search(r"attempt|retr|tries|trial", f"{target} {written}", re.IGNORECASE)
    parts = [*node.body, *node.orelse]
    leaves = any(
        isinstance(part, (ast.Break, ast.Return)) for body in parts for part in ast.walk(body)
    )
    sleeps = any("sleep(" in ast.unparse(handler) for handler in caught)
    endless = isinstance(loop, ast.While) and not re.search(
        r"\binput\(|\.get\(|\bnext\(|\.pop", ast.unparse(loop)
    )
    return (
        bool(counted)
        or (endless and (leaves or sleeps))
        or (written.startswith("range(") and leaves)
    )


def catches(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(FAILURES.match(ast.unparse(part)) for part in types)


def stays(handler: ast.ExceptHandler) -> bool:
    """Whether the handler goes on at all: not one that only raises or leaves."""
    last = handler.body[-1]
    return not isinstance(last, (ast.Raise, ast.Return, ast.Break))


def retried(program: Program, event: Event, node: ast.AST) -> Hit:
    return Hit(
        "home-made-retry",
        node,
        f"{event.method} is tried again by the script, though the SDK has retried before it "
        "raises: a training call that did arrive is then applied twice",
        f"call {event.method} once and let the error end the run; resume from the last checkpoint",
        (seen(program, event.node, "inside"),) if line(event.node) != line(node) else (),
    )
