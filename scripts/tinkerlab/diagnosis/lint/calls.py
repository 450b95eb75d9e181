"""Calls and awaits: submissions to the SDK, waits for their results, the script's own functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tinkerlab.diagnosis.lint import sdk
from tinkerlab.diagnosis.lint.expressions import MARKERS, Expressions, dotted
from tinkerlab.diagnosis.lint.values import (
    LOOPS,
    NOTHING,
    Event,
    Value,
    join,
    mixed,
    place,
)

MAX_DEPTH = 6  # calls followed into calls
MAX_STEPS_INLINED = 20_000
CLIENTS = ("training", "sampling", "service", "rest")
GATHERS = {"asyncio.wait"}
TASKS = {"asyncio.create_task", "asyncio.ensure_future"}
RUNS = {"asyncio.run", "anyio.run", "trio.run", "asyncio.run_coroutine_threadsafe"}
WITH_TIMEOUT = {"asyncio.wait_for"}
MUTATES = {"append", "extend", "add", "insert", "put", "put_nowait", "appendleft", "update"}
TENSORS = ("torch.", "numpy.", "jax.numpy.", "tinker.TensorData", "tinker.types.TensorData")
SAMPLE_ARGUMENTS = {"num_samples", "sampling_params", "prompt"}
TEXT_METHODS = {"strip", "format", "join", "replace", "lower", "lstrip", "rstrip", "removeprefix"}


class Calls(Expressions):
    """Follows calls. ``Walker`` supplies ``run`` for the bodies of functions."""

    def run(self, body: Any) -> bool:
        raise NotImplementedError

    def of_Call(self, node: ast.Call) -> Value:
        function = node.func
        receiver = self.ev(function.value) if isinstance(function, ast.Attribute) else NOTHING
        args = self.arguments(node)
        if isinstance(function, ast.Attribute):
            known = self.method(node, function, receiver, args)
            if known is not None:
                return known
        callee = self.ev(function) if not isinstance(function, ast.Attribute) else NOTHING
        if isinstance(function, ast.Attribute):
            callee = self.env.get(dotted(function) or "", NOTHING)
            if not callee.kind and receiver.kind == "import":
                callee = Value("import", data=f"{receiver.data}.{function.attr}")
        path = callee.data if callee.kind == "import" else ""
        name = path or (function.attr if isinstance(function, ast.Attribute) else dotted(function))
        self.emit("call", node, method=name or "", args=args, receiver=receiver)
        if callee.kind == "function":
            return self.call_function(node, callee, args)
        if callee.kind == "class":
            return self.make_instance(node, callee, args)
        return self.imported(node, str(name or ""), receiver, args)

    def arguments(self, node: ast.Call) -> dict[int | str, Value]:
        args: dict[int | str, Value] = {}
        for index, part in enumerate(node.args):
            value = self.ev(part)
            args[index] = Value("spread", of=value) if isinstance(part, ast.Starred) else value
        for keyword in node.keywords:
            value = self.ev(keyword.value)
            if keyword.arg is not None:
                args[keyword.arg] = value
            else:
                args["**"] = value
                if isinstance(value.items, dict):
                    args.update({k: v for k, v in value.items.items() if isinstance(k, str)})
        return args

    # Methods.

    def method(
        self, node: ast.Call, function: ast.Attribute, receiver: Value, args: dict[int | str, Value]
    ) -> Value | None:
        name = function.attr
        if receiver.kind in ("future", "task", "coroutine"):
            waited = self.future_method(node, name, receiver, args)
            if waited is not None:
                return waited
        client = receiver.of if receiver.kind == "future" else None
        if client is not None and client.kind in CLIENTS and self.is_sdk(client.kind, name):
            self.emit("unresolved", node, method=name, value=receiver)
            receiver = client
        base = name.removesuffix("_async")
        kind = receiver.kind if receiver.kind in CLIENTS else ""
        if not kind and receiver.kind in ("", "import"):
            kind = sdk.TELLING.get(base, "")
            if kind and receiver.kind == "import":
                return None
            if kind:
                receiver = Value(kind, data=dotted(function.value))
        if kind and self.is_sdk(kind, name) and self.plausible(base, receiver, args):
            return self.sdk_call(node, kind, name, receiver, args)
        own = self.own_method(node, function, receiver, args)
        if own is not None:
            return own
        if name in MUTATES and receiver.kind not in CLIENTS:
            self.mutate(function.value, args)
        return None

    def is_sdk(self, kind: str, name: str) -> bool:
        base = name.removesuffix("_async")
        if kind == "rest":
            return not name.startswith("_")
        return base in sdk.CALLS[kind] or (kind, base) in sdk.DIRECT

    def plausible(self, base: str, receiver: Value, args: dict[int | str, Value]) -> bool:
        """``sample`` is a common word: of a receiver known by its name only, look closer."""
        if base != "sample" or receiver.call is not None or receiver.born >= 0:
            return True
        positional = sum(isinstance(key, int) for key in args)
        return bool(SAMPLE_ARGUMENTS & set(args)) or positional >= 3 or "**" in args

    def future_method(
        self, node: ast.Call, name: str, receiver: Value, args: dict[int | str, Value]
    ) -> Value | None:
        if receiver.kind == "coroutine":
            if name in ("result", "result_async"):
                # Attribute access was not followed for a method call: record it here.
                self.emit("misused", node, method=name, value=receiver)
                return self.finish(node, receiver, "result", args)
            return None
        if name == "result":
            return self.wait(node, receiver, "result", args)
        if name == "result_async":
            return Value("coroutine", of=receiver.of, data=("wait", receiver, args))
        if name == "coroutine":
            return Value("coroutine", of=receiver.of, data=("wait", receiver, {}))
        if name in ("future", "add_done_callback", "done", "cancel"):
            return receiver if name == "future" else NOTHING
        return None

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

    # Coroutines and tasks.

    def of_Await(self, node: ast.Await) -> Value:
        return self.finish(node, self.ev(node.value), "await", {})

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

    def beside(self, node: ast.AST) -> Any:
        """Concurrent work is not part of the loops in which it was started."""
        walker = self

        class Detached:
            def __enter__(self) -> None:
                self.saved = walker.stack, walker.iteration
                walker.stack = [n for n in walker.stack if not isinstance(n, LOOPS)]
                walker.stack.append(node)
                walker.iteration = []

            def __exit__(self, *_: object) -> None:
                walker.stack, walker.iteration = self.saved

        return Detached()

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
                results.append(self.wait(node, started, "gather") if there else started)
        of = NOTHING
        for result in results:
            of = join(of, result)
        exact = all(v.kind not in ("spread", "list") for k, v in args.items() if isinstance(k, int))
        gathered = Value("list", of=of, items=results if exact else None, origins=mixed(results))
        return Value("coroutine", of=gathered, data=("wait", Value("future", of=gathered), {}))

    # The script's own functions.

    def call_function(self, node: ast.Call, callee: Value, args: dict[int | str, Value]) -> Value:
        function, _ = callee.data
        if isinstance(function, ast.AsyncFunctionDef):
            return Value(
                "coroutine",
                of=NOTHING,
                data=("own", node, callee, args),
                origins=mixed(args.values()),
            )
        return self.inline(node, callee, args)

    def own_method(
        self, node: ast.Call, function: ast.Attribute, receiver: Value, args: dict[int | str, Value]
    ) -> Value | None:
        name = function.attr
        method: Value | None = None
        if isinstance(function.value, ast.Name) and function.value.id == "self":
            method = self.env.get(f"self.{name}")
        elif receiver.kind == "instance":
            method = receiver.data[1].get(f"self.{name}")
        if method is None or method.kind != "function":
            return None
        self.emit("call", node, method=name, args=args, receiver=receiver)
        bound = Value(
            "function",
            data=(*method.data[:2], receiver.data[1] if receiver.kind == "instance" else "self"),
        )
        definition = method.data[0]
        if isinstance(definition, ast.AsyncFunctionDef):
            return Value(
                "coroutine",
                of=NOTHING,
                data=("own", node, bound, args),
                origins=mixed(args.values()),
            )
        return self.inline(node, bound, args)

    def make_instance(self, node: ast.Call, callee: Value, args: dict[int | str, Value]) -> Value:
        definition, env = callee.data
        attributes = dict(self.program.attributes_of(definition, env))
        instance = Value("instance", data=(definition, attributes), origins=mixed(args.values()))
        init = attributes.get("self.__init__")
        if init is not None and init.kind == "function":
            bound = Value("function", data=(*init.data[:2], attributes))
            self.inline(node, bound, args)
        else:
            attributes.update(
                {f"self.{k}": v for k, v in args.items() if isinstance(k, str) and v.kind}
            )
        return instance

    def inline(self, node: ast.Call, callee: Value, args: dict[int | str, Value]) -> Value:
        """Follow a call of the script's own function; what it returns."""
        function, closure, *bound = callee.data
        deep = sum(
            isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) for n in self.stack
        )
        if function in self.stack or deep >= MAX_DEPTH or self.steps > MAX_STEPS_INLINED:
            return Value(origins=mixed(args.values()))
        caller = self.env
        own = bound[0] if bound and isinstance(bound[0], dict) else None
        env = dict(closure)
        if bound:
            source = caller if own is None else own
            env.update({k: v for k, v in source.items() if k.startswith("self.")})
        env.update(parameters(function, args, skip_self=bool(bound)))
        self.env = env
        self.frames.append([])
        self.stack.append(function)
        if isinstance(function, ast.Lambda):
            self.frames[-1].append(self.ev(function.body))
        else:
            self.run(function.body)
        self.stack.pop()
        returned = self.frames.pop()
        self.env = caller
        if bound:
            target = caller if own is None else own
            target.update({k: v for k, v in env.items() if k.startswith("self.")})
        result = NOTHING
        for value in returned:
            result = join(result, value)
        return result.tainted(mixed(args.values()))

    def mutate(self, holder: ast.expr, args: dict[int | str, Value]) -> None:
        name = dotted(holder)
        if name is None:
            return
        old = self.env.get(name, NOTHING)
        added = NOTHING
        for value in args.values():
            added = join(added, value.of if value.kind == "list" and value.of else value)
        kind = old.kind if old.kind not in ("", "const") else "list"
        self.env[name] = replace(
            old,
            kind=kind,
            items=None,
            of=join(old.of or NOTHING, added),
            origins=old.origins | mixed(args.values()),
        )

    # What other libraries give.

    def imported(
        self, node: ast.Call, name: str, receiver: Value, args: dict[int | str, Value]
    ) -> Value:
        origins = mixed(args.values()) | receiver.origins
        first = args.get(0, NOTHING)
        last = name.rsplit(".", 1)[-1]
        if name in GATHERS or last in ("gather", "as_completed"):
            gathered = self.gather(node, args)
            each = gathered.of.of if gathered.of is not None else None
            if last == "as_completed":
                return Value("list", of=Value("task", of=each, data=True))
            return gathered
        if name in TASKS or name.endswith("create_task"):
            return self.start(node, first)
        if name in RUNS or name.endswith("run_until_complete"):
            return self.finish(node, first, "await", {})
        if name in WITH_TIMEOUT:
            return Value("coroutine", of=NOTHING, data=("timed", node, first, args))
        if name in sdk.CLASSES or name.removeprefix("tinker.lib.public_interfaces.") in sdk.CLASSES:
            return Value(sdk.CLASSES[name], data=place(node), origins=origins)
        for value in args.values():
            if value.kind in CLIENTS:
                self.emit("handed", node, method=name, value=value)
        if name == "chz.Blueprint" and first.kind == "import":
            return Value("blueprint", data=first.data)
        if last == "apply" and receiver.kind == "blueprint":
            return receiver
        if last == "parse_response":
            ending = Value("termination", origins=origins)
            message = Value("message", origins=origins)
            return Value("list", items=[message, ending], of=NOTHING, origins=origins)
        if name.startswith(TENSORS) and last not in ("item", "tolist", "float", "prod"):
            return Value("tensor", origins=origins)
        if receiver.kind == "tensor" and last not in ("item", "numel", "dim"):
            return Value("list" if last == "tolist" else "tensor", origins=origins)
        if last in ("get_tokenizer", "from_pretrained") and ("okenizer" in name):
            return Value("tokenizer", data=name)
        if last == "apply_chat_template":
            return Value("templated", origins=origins)
        if last == "encode" and is_tokenizer(node, receiver):
            return self.encoded(node, first, origins)
        if last in (
            "zip",
            "enumerate",
            "list",
            "tuple",
            "sorted",
            "reversed",
            "tqdm",
            "as_completed",
        ):
            return self.rewrapped(last, args, origins)
        if last in ("float", "int", "bool", "any", "all", "sum") and name == last:
            subject = first.of if first.kind == "list" and first.of else first
            if subject.kind == "termination":
                self.emit("truth", node, value=subject)
            return Value("number" if last in ("float", "int", "sum") else "", origins=origins)
        if last in TEXT_METHODS and receiver.kind in ("text", "templated", "const"):
            marked = (
                any(v.kind == "templated" for v in args.values()) or receiver.kind == "templated"
            )
            fixed = receiver.data if isinstance(receiver.data, str) else ""
            kind = "templated" if marked or MARKERS.search(fixed) else "text"
            return Value(kind, origins=origins)
        if isinstance(node.func, ast.Attribute) and origins and receiver.kind not in CLIENTS:
            # A method that takes a result may keep it: env.step(reply).
            holder = dotted(node.func.value)
            if holder and holder in self.env and self.env[holder].kind not in ("import", "list"):
                self.env[holder] = self.env[holder].tainted(origins)
        return Value("called", data=name, origins=origins)

    def rewrapped(self, last: str, args: dict[int | str, Value], origins: Any) -> Value:
        positional = [v for k, v in args.items() if isinstance(k, int)]
        if last == "zip":
            parts = [self.element(v) for v in positional]
            return Value("list", of=Value("list", items=parts, of=NOTHING), origins=origins)
        first = positional[0] if positional else NOTHING
        if last == "enumerate":
            pair = Value("list", items=[Value("number"), self.element(first)], of=NOTHING)
            return Value("list", of=pair, origins=origins)
        return first if first.kind else Value(origins=origins)

    def encoded(self, node: ast.Call, text: Value, origins: Any) -> Value:
        """Tokens of plain text, or of text that something laid out."""
        laid_out = text.kind in ("templated", "called") or (
            isinstance(text.data, str) and text.kind == "const" and MARKERS.search(text.data)
        )
        if laid_out:
            return Value("rendered", origins=origins)
        return Value("tokens", data=node, origins=origins)


def is_tokenizer(node: ast.Call, receiver: Value) -> bool:
    if receiver.kind == "tokenizer":
        return True
    holder = dotted(node.func.value) if isinstance(node.func, ast.Attribute) else None
    last = (holder or "").rsplit(".", 1)[-1].lower()
    return last in ("tok", "tokenizer") or last.endswith("_tokenizer")


def parameters(
    function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda,
    args: dict[int | str, Value],
    *,
    skip_self: bool,
) -> Iterator[tuple[str, Value]]:
    """The parameters' values: what was passed, or what name, default and annotation tell."""
    spec = function.args
    names = [*spec.posonlyargs, *spec.args]
    defaults = [None] * (len(names) - len(spec.defaults)) + list(spec.defaults)
    if skip_self and names and names[0].arg in ("self", "cls"):
        names, defaults = names[1:], defaults[1:]
    rest = [*names, *spec.kwonlyargs]
    defaults = [*defaults, *spec.kw_defaults]
    for index, (parameter, default) in enumerate(zip(rest, defaults, strict=True)):
        passed = args.get(parameter.arg)
        if passed is None and index < len(names):
            passed = args.get(index)
        told = (
            sdk.kind_of_annotation(ast.unparse(parameter.annotation))
            if parameter.annotation
            else ""
        )
        kind = told or (sdk.kind_of_name(parameter.arg) if not parameter.annotation else "")
        if passed is not None and passed.kind:
            yield parameter.arg, passed
        elif kind:
            origins = passed.origins if passed is not None else frozenset()
            yield parameter.arg, Value(kind, data=parameter.arg, origins=origins)
        elif passed is not None:
            yield parameter.arg, passed
        elif isinstance(default, ast.Constant) and isinstance(default.value, (int, float, str)):
            yield parameter.arg, Value("default", data=default.value)
        else:
            yield parameter.arg, NOTHING


__all__ = ["Calls", "Event"]
