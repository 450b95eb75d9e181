"""Calls: which are the SDK's, which the script's own, and what other libraries' give."""

from __future__ import annotations

import ast
import re
from typing import Any

from tinkerlab.diagnosis.lint import sdk
from tinkerlab.diagnosis.lint.expressions import MARKERS, dotted
from tinkerlab.diagnosis.lint.functions import Functions
from tinkerlab.diagnosis.lint.values import NOTHING, Value, mixed, place

CLIENTS = ("training", "sampling", "service", "rest")
GATHERS = {"asyncio.wait"}
TASKS = {"asyncio.create_task", "asyncio.ensure_future"}
RUNS = {"asyncio.run", "anyio.run", "trio.run", "asyncio.run_coroutine_threadsafe"}
WITH_TIMEOUT = {"asyncio.wait_for"}
MUTATES = {"append", "extend", "add", "insert", "put", "put_nowait", "appendleft", "update"}
TENSORS = ("torch.", "numpy.", "jax.numpy.", "tinker.TensorData", "tinker.types.TensorData")
SAMPLE_ARGUMENTS = {"num_samples", "sampling_params", "prompt"}
# The cookbook's coroutines that sample: tinker_cookbook.completers and rl.rollouts.
COMPLETERS = {"TinkerTokenCompleter", "TinkerMessageCompleter"}
ROLLOUTS = {"do_group_rollout", "do_group_rollout_and_filter_constant_reward"}
RETRIES = re.compile(r"retr(y|ies)|backoff", re.IGNORECASE)
# Start the function that they are given.
ENTRYPOINTS = {"chz.entrypoint", "chz.nested_entrypoint", "fire.Fire", "typer.run", "app.run"}
TEXT_METHODS = {"strip", "format", "join", "replace", "lower", "lstrip", "rstrip", "removeprefix"}


class Calls(Functions):
    """Tells calls apart."""

    def of_Call(self, node: ast.Call) -> Value:
        function = node.func
        receiver = self.ev(function.value) if isinstance(function, ast.Attribute) else NOTHING
        if (dotted(function) or "").endswith("wait_for"):
            with self.inside(node):  # what is gathered in its argument has the deadline too
                args = self.arguments(node)
        else:
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
        if callee.kind == "bound":
            return self.wait(node, callee.of or NOTHING, "result", args)
        if callee.kind == "completer":
            return self.completion(node, callee.of or NOTHING, args)
        plain = callee.kind == "" and dotted(function) in ("tokenizer", "tok", "self.tokenizer")
        if callee.kind == "tokenizer" or plain:
            return self.encoded(node, args.get(0, NOTHING), mixed(args.values()))
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
            if base == "sample" and "sampling_params" in args:
                kind = "sampling"
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
                # Go on as if it had been a future, so that what follows is read as meant.
                return self.finish(node, receiver, "gather", args)
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

    def of_Await(self, node: ast.Await) -> Value:
        return self.finish(node, self.ev(node.value), "await", {})

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
        if name == "dict":
            items = dict(first.items) if isinstance(first.items, dict) else {}
            items |= {key: value for key, value in args.items() if key not in (0, "**")}
            return Value("dict", items=items, origins=origins)
        if name == "chz.Blueprint" and first.kind == "import":
            return Value("blueprint", data=first.data)
        if last == "apply" and receiver.kind == "blueprint":
            return receiver
        if name == "map" and first.kind == "function" and len(node.args) == 2:
            return self.mapped(node, first, args)
        if first.kind == "bound":
            # to_thread(f.result), retry(f.result): called there, wherever that is.
            with self.inside(node):
                result = self.wait(node, first.of or NOTHING, "gather", {})
            return Value("coroutine", of=result, data=("wait", Value("future", of=result), {}))
        if name in ENTRYPOINTS and first.kind == "function":
            return self.call_function(node, first, {})
        if last in COMPLETERS:
            client = args.get("sampling_client", first)
            return Value("completer", of=client if client.kind == "sampling" else NOTHING)
        if last in ROLLOUTS:
            policy = next((v for v in args.values() if v.kind == "completer"), NOTHING)
            return self.completion(node, policy.of or NOTHING, args)
        if RETRIES.search(last):
            for value in args.values():
                if value.kind == "function":
                    self.stack.append(node)
                    result = self.inline(node, value, {})
                    self.stack.pop()
                    return result
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

    def mapped(self, node: ast.Call, function: Value, args: dict[int | str, Value]) -> Value:
        """``map(f, items)``, followed as ``(f(item) for item in items)``."""
        part = ast.comprehension(ast.Name("item"), node.args[1], [], 0)
        loop = ast.copy_location(ast.GeneratorExp(node.args[0], [part]), node)
        item = self.element(args.get(1, NOTHING))
        with self.inside(loop):
            self.iteration.append(1)
            value = self.call_function(node, function, {0: item})
            self.iteration.pop()
        return Value("list", of=value, origins=value.origins)

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
