"""What the expressions of a script hold."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tinkerlab.diagnosis.lint import sdk
from tinkerlab.diagnosis.lint.values import NOTHING, Event, Value, join, mixed

if TYPE_CHECKING:
    from tinkerlab.diagnosis.lint.program import Program

# Text that already carries a model's chat markers was laid out by hand or by a template.
MARKERS = re.compile(r"<\||\[INST\]|<s>|<start_of_turn>|<｜")


class Expressions:
    """Evaluates expressions in an environment and records events."""

    def __init__(self, program: Program, env: dict[str, Value]) -> None:
        self.program = program
        self.env = env
        self.events: list[Event] = []
        self.stack: list[ast.AST] = []
        self.iteration: list[int] = []
        self.frames: list[list[Value]] = []
        self.shared: list[set[str]] = [set()]  # names declared global or nonlocal, per function
        self.steps = 0

    def emit(self, what: str, node: ast.AST, **fields: Any) -> Event:
        event = Event(
            what,
            node,
            len(self.events),
            tuple(self.stack),
            iteration=tuple(self.iteration),
            **fields,
        )
        self.events.append(event)
        return event

    @contextmanager
    def inside(self, node: ast.AST) -> Iterator[None]:
        self.stack.append(node)
        try:
            yield
        finally:
            self.stack.pop()

    def ev(self, node: ast.AST | None) -> Value:
        if node is None:
            return NOTHING
        evaluate: Callable[[Any], Value] | None = getattr(self, f"of_{type(node).__name__}", None)
        if evaluate is not None:
            return evaluate(node)
        parts = [self.ev(child) for child in ast.iter_child_nodes(node) if _expr(child)]
        return Value(origins=mixed(parts))

    def truth(self, node: ast.expr) -> Value:
        """Evaluate a condition; the ends of replies judged by truth are recorded."""
        value = self.ev(node)
        if value.kind == "termination":
            self.emit("truth", node, value=value)
        return value

    def bind(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self.env[target.id] = value
        elif isinstance(target, ast.Attribute):
            name = dotted(target)
            if name:
                self.env[name] = value
        elif isinstance(target, ast.Starred):
            self.bind(target.value, Value("list", of=value, origins=value.origins))
        elif isinstance(target, ast.Subscript):
            name = dotted(target.value)
            if name:
                self.env[name] = self._with_item(self.ev(target.value), target.slice, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            fixed = isinstance(value.items, list) and len(value.items) == len(target.elts)
            for index, part in enumerate(target.elts):
                self.bind(part, value.items[index] if fixed else self.element(value))

    def _with_item(self, holder: Value, key: ast.expr, value: Value) -> Value:
        items = dict(holder.items) if isinstance(holder.items, dict) else {}
        if isinstance(key, ast.Constant):
            items[key.value] = value
        kind = holder.kind or "dict"
        of = join(holder.of or NOTHING, value)
        return replace(
            holder, kind=kind, items=items, of=of, origins=holder.origins | value.origins
        )

    def element(self, value: Value) -> Value:
        """One element of what is iterated over or indexed."""
        if value.of is not None and value.kind in ("list", "dict"):
            return value.of.tainted(value.origins)
        if value.kind == "tokens":
            return value
        return Value(origins=value.origins)

    # Names and constants.

    def of_Name(self, node: ast.Name) -> Value:
        if node.id in self.env:
            return self.env[node.id]
        return self.by_name(node.id)

    def by_name(self, name: str) -> Value:
        kind = sdk.kind_of_name(name)
        return Value(kind, data=name) if kind else NOTHING

    def of_Attribute(self, node: ast.Attribute) -> Value:
        name = dotted(node)
        if name and name in self.env:
            return self.env[name]
        holder = self.ev(node.value)
        if holder.kind == "import":
            return Value("import", data=f"{holder.data}.{node.attr}")
        if holder.kind == "instance":
            found = holder.data[1].get(f"self.{node.attr}")
            if found is not None:
                return found
        if holder.kind in ("output", "response", "optim"):
            self.emit("attribute", node, method=node.attr, value=holder)
        if holder.kind == "coroutine":
            self.emit("misused", node, method=node.attr, value=holder)
        if holder.kind == "future" and node.attr == "result":
            return Value("bound", of=holder)  # the method itself, handed to something
        flavour = path_flavour(node.attr, holder)
        if flavour:
            source = holder.data if holder.kind == "called" else None
            return Value(
                "path", data=flavour, items=source, origins=holder.origins, call=holder.call
            )
        if holder.kind == "tokens" and node.attr == "input_ids":
            return holder
        if holder.kind == "termination":
            return Value(origins=holder.origins)
        named = self.by_name(node.attr)
        if named.kind:
            return replace(named, data=name or node.attr, origins=holder.origins)
        return Value(origins=holder.origins)

    def of_Constant(self, node: ast.Constant) -> Value:
        flavour = path_flavour_of_text(node.value)
        if flavour:
            return Value("path", data=flavour, items=node.value)
        return Value("const", data=node.value)

    def of_JoinedStr(self, node: ast.JoinedStr) -> Value:
        parts = [
            self.ev(part.value) for part in node.values if isinstance(part, ast.FormattedValue)
        ]
        fixed = "".join(
            str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
        )
        flavour = path_flavour_of_text(fixed)
        if flavour:
            return Value("path", data=flavour, origins=mixed(parts))
        marked = MARKERS.search(fixed) or any(part.kind == "templated" for part in parts)
        return Value("templated" if marked else "text", data=fixed, origins=mixed(parts))

    # Operators.

    def of_BoolOp(self, node: ast.BoolOp) -> Value:
        values = [self.truth(part) for part in node.values]
        result = values[0]
        for value in values[1:]:
            result = join(result, value)
        return result if result.kind != "termination" else Value(origins=mixed(values))

    def of_UnaryOp(self, node: ast.UnaryOp) -> Value:
        if isinstance(node.op, ast.Not):
            return Value(origins=self.truth(node.operand).origins)
        value = self.ev(node.operand)
        if value.kind == "const" and isinstance(node.op, ast.USub) and _number(value.data):
            return Value("const", data=-value.data)
        return Value(origins=value.origins)

    def of_BinOp(self, node: ast.BinOp) -> Value:
        left, right = self.ev(node.left), self.ev(node.right)
        origins = mixed((left, right))
        for side, other in ((left, right), (right, left)):
            if side.kind == "termination" and other.kind in ("const", "number"):
                self.emit("truth", node.left if side is left else node.right, value=side)
        if left.kind == right.kind == "const":
            return Value("const", data=_compute(node.op, left.data, right.data))
        kinds = {left.kind, right.kind}
        if "templated" in kinds or "rendered" in kinds:
            return Value("templated" if "templated" in kinds else "rendered", origins=origins)
        if kinds == {"tokens"}:
            return replace(left, origins=origins)
        if "tensor" in kinds:
            return Value("tensor", origins=origins)
        if "list" in kinds and isinstance(node.op, ast.Add):
            return replace(left if left.kind == "list" else right, items=None, origins=origins)
        if kinds <= {"const", "text", "path"} and "path" in kinds:
            return replace(left if left.kind == "path" else right, origins=origins)
        if kinds & {"text", "const"} and isinstance(node.op, ast.Add):
            texts = [v.data for v in (left, right) if isinstance(v.data, str)]
            marked = any(MARKERS.search(text) for text in texts)
            return Value("templated" if marked else "text", origins=origins)
        return Value(origins=origins)

    def of_Compare(self, node: ast.Compare) -> Value:
        values = [self.ev(node.left), *(self.ev(part) for part in node.comparators)]
        against = any(value.kind == "const" and isinstance(value.data, bool) for value in values)
        if against and values[0].kind == "termination":
            self.emit("truth", node, value=values[0])
        return Value(origins=mixed(values))

    def of_IfExp(self, node: ast.IfExp) -> Value:
        test = self.truth(node.test)
        return join(self.ev(node.body), self.ev(node.orelse)).tainted(test.origins)

    def of_NamedExpr(self, node: ast.NamedExpr) -> Value:
        value = self.ev(node.value)
        self.bind(node.target, value)
        return value

    # Containers.

    def of_Tuple(self, node: ast.Tuple | ast.List | ast.Set) -> Value:
        items: list[Value] = []
        starred = False
        for part in node.elts:
            if isinstance(part, ast.Starred):
                starred = True
                items.append(self.element(self.ev(part.value)))
            else:
                items.append(self.ev(part))
        of = NOTHING
        for item in items:
            of = join(of, item)
        return Value("list", of=of, items=None if starred else items, origins=mixed(items))

    of_List = of_Set = of_Tuple

    def of_Dict(self, node: ast.Dict) -> Value:
        items: dict[Any, Value] = {}
        spread = False
        for key, part in zip(node.keys, node.values, strict=True):
            value = self.ev(part)
            if key is None:
                spread = True
                items.update(value.items if isinstance(value.items, dict) else {})
            elif isinstance(key, ast.Constant):
                items[key.value] = value
            else:
                self.ev(key)
        data = "spread" if spread else None
        return Value("dict", items=items, data=data, origins=mixed(items.values()))

    def of_Subscript(self, node: ast.Subscript) -> Value:
        name = dotted(node.value)
        holder = self.ev(node.value)
        key = self.ev(node.slice)
        if isinstance(node.slice, ast.Slice):
            return replace(holder, items=None) if holder.kind in ("list", "tokens") else holder
        if holder.items is not None and key.kind == "const":
            try:
                return holder.items[key.data].tainted(holder.origins)
            except (KeyError, IndexError, TypeError):
                pass
        if holder.kind in ("output", "response") and key.kind == "const":
            self.emit("attribute", node, method=str(key.data), value=holder)
        if key.kind == "const" and isinstance(key.data, str):
            flavour = path_flavour(key.data, holder)
            if flavour:
                return Value("path", data=flavour, origins=holder.origins)
        if name is None and holder.kind == "tokens" and key.data == "input_ids":
            return holder
        return self.element(holder).tainted(key.origins)

    def of_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Value:
        return self._comprehension(node, lambda: self.ev(node.elt))

    of_SetComp = of_GeneratorExp = of_ListComp

    def of_DictComp(self, node: ast.DictComp) -> Value:
        return self._comprehension(node, lambda: self.ev(node.value))

    def _comprehension(
        self,
        node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp,
        inner: Callable[[], Value],
    ) -> Value:
        before = dict(self.env)
        items = [self.element(self.ev(node.generators[0].iter))]
        value = NOTHING
        for again in (1, 2):
            self.stack.append(node)
            self.iteration.append(again)
            for index, part in enumerate(node.generators):
                self.bind(part.target, items[0] if index == 0 else self.element(self.ev(part.iter)))
                for test in part.ifs:
                    self.truth(test)
            value = inner()
            self.iteration.pop()
            self.stack.pop()
        for name in set(self.env) - set(before):
            del self.env[name]
        self.env.update(before)
        return Value("list", of=value, origins=value.origins | items[0].origins)

    def of_Lambda(self, node: ast.Lambda) -> Value:
        return Value("function", data=(node, self.env))

    def of_Starred(self, node: ast.Starred) -> Value:
        return self.ev(node.value)

    def of_Yield(self, node: ast.Yield) -> Value:
        value = self.ev(node.value)
        if self.frames:
            self.frames[-1].append(Value("list", of=value, origins=value.origins))
        return NOTHING


def dotted(node: ast.AST) -> str | None:
    """``self.tc`` as text; None for anything but names and attributes."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else None
    return None


def path_flavour_of_text(text: Any) -> str:
    """ "sampler", "state" or "external" when ``text`` is a tinker:// path, else ""."""
    if not isinstance(text, str) or not text.startswith("tinker://"):
        return ""
    for part, flavour in (
        ("/sampler_weights/", "sampler"),
        ("/external_weights/", "external"),
        ("/weights/", "state"),
    ):
        if part in text:
            return flavour
    return ""


def path_flavour(name: str, holder: Value) -> str:
    """The kind of checkpoint that ``holder.name`` or ``holder["name"]`` is the path of."""
    if name == "path" and holder.kind.startswith("saved_"):
        return holder.kind.removeprefix("saved_")
    # The fields of the cookbook's CheckpointRecord and of save_checkpoint's result.
    return {"sampler_path": "sampler", "state_path": "state"}.get(name, "")


def _expr(node: ast.AST) -> bool:
    return isinstance(node, (ast.expr, ast.keyword, ast.comprehension))


def _number(data: Any) -> bool:
    return isinstance(data, (int, float)) and not isinstance(data, bool)


def _compute(op: ast.operator, left: Any, right: Any) -> Any:
    """Constant arithmetic such as ``30 * 60``; None where it is not plain."""
    if isinstance(op, ast.Add) and isinstance(left, str) and isinstance(right, str):
        return left + right
    if not (_number(left) and _number(right)):
        return None
    if isinstance(op, ast.Mult):
        return left * right
    if isinstance(op, ast.Add):
        return left + right
    if isinstance(op, ast.Sub):
        return left - right
    if isinstance(op, (ast.Div, ast.FloorDiv)) and right:
        return left / right
    return None
