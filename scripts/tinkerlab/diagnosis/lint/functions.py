"""The script's own functions and classes: calls are followed into them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tinkerlab.diagnosis.lint import sdk
from tinkerlab.diagnosis.lint.expressions import dotted
from tinkerlab.diagnosis.lint.submissions import Submissions
from tinkerlab.diagnosis.lint.values import NOTHING, Value, join, mixed

MAX_DEPTH = 6  # calls followed into calls
MAX_STEPS_INLINED = 20_000


class Functions(Submissions):
    """Follows calls of the script's own functions. ``Walker`` supplies ``run`` for their bodies."""

    def run(self, body: Any) -> bool:
        raise NotImplementedError

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
        self.shared.append(set())
        self.stack.append(function)
        if isinstance(function, ast.Lambda):
            self.frames[-1].append(self.ev(function.body))
        else:
            self.run(function.body)
        self.stack.pop()
        returned = self.frames.pop()
        self.env = caller
        for name in self.shared.pop():
            for holder in (closure, caller):
                if name in env:
                    holder[name] = env[name]
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
