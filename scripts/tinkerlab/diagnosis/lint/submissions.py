"""Submissions to the SDK, waits for their results, and the coroutines in between."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tinkerlab.diagnosis.lint import sdk
from tinkerlab.diagnosis.lint.expressions import Expressions, dotted
from tinkerlab.diagnosis.lint.values import LOOPS, NOTHING, Value, join, mixed, place


class Submissions(Expressions):
    """Records what is submitted and waited for. ``Functions`` supplies ``inline``."""

    def inline(self, node: ast.Call, callee: Value, args: dict[int | str, Value]) -> Value:
        raise NotImplementedError

    def sdk_call(
        self, node: ast.Call, kind: str, name: str, receiver: Value, args: dict[int | str, Value]
    ) -> Value:
        base = name.removesuffix("_async")
        if (kind, base) in sdk.DEPRECATED or name.endswith("_async"):
            self.emit("call", node, method=f"@sdk.{kind}.{name}", args=args, receiver=receiver)
        direct = sdk.DIRECT.get((kind, base))
        if direct:
            return Value("rest" if direct == "rest" else direct, data=dotted(node.func))
        if name.endswith("_async"):
            data = ("sdk", node, kind, base, receiver, args)
            return Value("coroutine", of=Value("later"), data=data, origins=mixed(args.values()))
        return self.submit(node, kind, base, receiver, args)

    def submit(
        self,
        node: ast.AST,
        kind: str,
        base: str,
        receiver: Value,
        args: dict[int | str, Value],
        deprecated: bool = False,
    ) -> Value:
        gives = sdk.CALLS[kind].get(base, "rest_result") if kind != "rest" else "rest_result"
        client = receiver.data if receiver.data is not None else receiver.born
        event = self.emit(
            "submit",
            node,
            method=base,
            client=client,
            args=args,
            receiver=receiver,
            deprecated=deprecated,
        )
        result = Value(gives, call=event, origins=mixed(args.values()))
        if gives in ("training", "sampling"):
            result = replace(result, data=place(node), born=event.index)
        event.value = Value("future", of=result, call=event, origins=mixed(args.values()))
        return event.value

    def wait(
        self, node: ast.AST, future: Value, how: str, args: dict[int | str, Value] | None = None
    ) -> Value:
        """The result of a future or task; of one that came from the SDK, record the wait."""
        if future.kind == "task" and future.of is not None:
            inner = future.of
            if inner.kind == "future":  # a task around `X_async()`
                enqueued = bool(future.data)
                return inner if enqueued else self.wait(node, inner, how, args)
            return inner
        call = future.call
        result = future.of or NOTHING
        if call is None:
            return result.tainted(future.origins)
        self.emit(
            "wait",
            node,
            method=call.method,
            client=call.client,
            value=future,
            args=args or {},
            how=how,
        )
        return result.tainted({place(call.node)})

    def finish(self, node: ast.AST, value: Value, how: str, args: dict[int | str, Value]) -> Value:
        """What awaiting ``value`` gives."""
        if value.kind in ("future", "task"):
            return self.wait(node, value, how, args)
        if value.kind != "coroutine" or value.data is None:
            return value
        what = value.data[0]
        if what == "wait":
            return self.wait(node, value.data[1], how, value.data[2] or args)
        if what == "own":
            return self.inline(*value.data[1:])
        if what == "timed":
            self.stack.append(value.data[1])
            result = self.finish(node, value.data[2], how, {})
            self.stack.pop()
            return result
        _, call, kind, base, receiver, call_args = value.data
        future = self.submit(call, kind, base, receiver, call_args, deprecated=True)
        return future if base in sdk.ENQUEUED_BY_ASYNC else self.wait(node, future, how, args)

    def start(self, node: ast.AST, value: Value) -> Value:
        """A coroutine handed to the event loop: it goes on beside what follows."""
        if value.kind == "coroutine" and value.data is not None and value.data[0] == "sdk":
            _, call, kind, base, receiver, args = value.data
            future = self.submit(call, kind, base, receiver, args, deprecated=True)
            return Value("task", of=future, data=base in sdk.ENQUEUED_BY_ASYNC)
        if value.kind == "coroutine" and value.data is not None and value.data[0] == "wait":
            return value.data[1]
        if value.kind == "coroutine" and value.data is not None:
            with self.beside(node):
                result = self.finish(node, value, "gather", {})
            return Value("task", of=result, data=True)
        return value

    @contextmanager
    def beside(self, node: ast.AST) -> Iterator[None]:
        """Concurrent work is not part of the loops in which it was started."""
        saved = self.stack, self.iteration
        self.stack = [part for part in self.stack if not isinstance(part, LOOPS)]
        self.stack.append(node)
        self.iteration = []
        yield
        self.stack, self.iteration = saved

    def gather(self, node: ast.Call, args: dict[int | str, Value]) -> Value:
        results: list[Value] = []
        for key, value in args.items():
            if not isinstance(key, int):
                continue
            many = value.kind in ("spread", "list")
            inner = value.of if value.kind == "spread" else value
            parts: list[Value] = []
            if many and inner is not None:
                parts = inner.items if isinstance(inner.items, list) else [inner.of or inner]
            else:
                parts = [value]
            for part in parts:
                started = self.start(node, part)
                there = started.kind in ("future", "task")
                limits: dict[int | str, Value] = (
                    {"timeout": args["timeout"]} if "timeout" in args else {}
                )
                results.append(self.wait(node, started, "gather", limits) if there else started)
        of = NOTHING
        for result in results:
            of = join(of, result)
        exact = all(v.kind not in ("spread", "list") for k, v in args.items() if isinstance(k, int))
        gathered = Value("list", of=of, items=results if exact else None, origins=mixed(results))
        return Value("coroutine", of=gathered, data=("wait", Value("future", of=gathered), {}))

    def completion(self, node: ast.Call, client: Value, args: dict[int | str, Value]) -> Value:
        """A completer or a rollout of the cookbook: a coroutine that samples."""
        receiver = client if client.kind == "sampling" else Value("sampling", data="policy")
        data = ("sdk", node, "sampling", "sample", receiver, args)
        return Value("coroutine", of=Value("later"), data=data, origins=mixed(args.values()))
