"""Follow a script in the order of execution and record what it does with the SDK.

Nothing is run. Loops are followed twice, so that what one round leaves for the next is seen;
calls of the script's own functions are followed into them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from tinkerlab.diagnosis.lint import sdk
from tinkerlab.diagnosis.lint.calls import Calls
from tinkerlab.diagnosis.lint.values import NOTHING, Value, join

MAX_STEPS = 20_000  # statements followed from one starting point; beyond it loops go once
JUMPS = (ast.Continue, ast.Break, ast.Return, ast.Raise)


class Walker(Calls):
    """Follows statements; ``Calls`` and ``Expressions`` follow what stands in them."""

    def run(self, body: Iterable[ast.stmt]) -> bool:
        """Follow statements; True when the flow leaves before the end."""
        for statement in body:
            self.steps += 1
            follow = getattr(self, f"on_{type(statement).__name__}", None)
            if follow is not None:
                if follow(statement):
                    return True
            else:
                for child in ast.iter_child_nodes(statement):
                    if isinstance(child, ast.expr):
                        self.ev(child)
        return False

    # Statements that bind names.

    def on_Assign(self, node: ast.Assign) -> None:
        value = self.ev(node.value)
        for target in node.targets:
            self.bind(target, value)

    def on_AnnAssign(self, node: ast.AnnAssign) -> None:
        kind = sdk.kind_of_annotation(ast.unparse(node.annotation))
        value = self.ev(node.value) if node.value is not None else NOTHING
        if not value.kind and kind:
            value = Value(kind, origins=value.origins)
        self.bind(node.target, value)

    def on_AugAssign(self, node: ast.AugAssign) -> None:
        value, old = self.truth(node.value), self.ev(node.target)
        self.bind(node.target, join(old, value) if old.kind else old.tainted(value.origins))

    def on_Import(self, node: ast.Import) -> None:
        for name in node.names:
            path = name.name if name.asname else name.name.split(".")[0]
            self.env[name.asname or path] = Value("import", data=path)

    def on_ImportFrom(self, node: ast.ImportFrom) -> None:
        for name in node.names:
            path = f"{node.module or ''}.{name.name}"
            self.env[name.asname or name.name] = Value("import", data=path)

    def on_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            self.ev(decorator)
        self.env[node.name] = Value("function", data=(node, self.env))

    on_AsyncFunctionDef = on_FunctionDef

    def on_ClassDef(self, node: ast.ClassDef) -> None:
        self.env[node.name] = Value("class", data=(node, self.env))

    def on_Global(self, node: ast.Global | ast.Nonlocal) -> None:
        self.shared[-1].update(node.names)

    on_Nonlocal = on_Global

    # Statements that steer.

    def on_Expr(self, node: ast.Expr) -> None:
        value = self.ev(node.value)
        if value.kind == "coroutine" and isinstance(node.value, ast.Call):
            self.emit("dropped", node.value, value=value)

    def on_Return(self, node: ast.Return) -> bool:
        if node.value is not None and self.frames:
            self.frames[-1].append(self.ev(node.value))
        elif node.value is not None:
            self.ev(node.value)
        return True

    def on_Raise(self, node: ast.Raise) -> bool:
        if node.exc is not None:
            self.ev(node.exc)
        return True

    def on_Break(self, node: ast.stmt) -> bool:
        return True

    on_Continue = on_Break

    def on_Assert(self, node: ast.Assert) -> None:
        self.truth(node.test)

    def on_If(self, node: ast.If) -> bool:
        test = self.truth(node.test)
        jumps = any(isinstance(child, JUMPS) for part in node.body for child in ast.walk(part))
        self.emit("branch", node, value=test, how="jumps" if jumps else "")
        with self.inside(node):
            return self.either(node.body, node.orelse)

    def either(self, body: list[ast.stmt], orelse: list[ast.stmt]) -> bool:
        before = dict(self.env)
        left = self.run(body)
        after = dict(self.env)
        self.restore(before)
        right = self.run(orelse)
        if left and not right:
            return False
        if right:
            self.restore(after)
            return left and right
        self.merge(after)
        return False

    def restore(self, env: dict[str, Value]) -> None:
        """In place: functions of the script hold on to the dictionary."""
        self.env.clear()
        self.env.update(env)

    def merge(self, other: dict[str, Value]) -> None:
        for name, value in other.items():
            self.env[name] = join(self.env.get(name, NOTHING), value)

    def on_For(self, node: ast.For | ast.AsyncFor) -> None:
        item = self.element(self.ev(node.iter))
        self.loop(node, node.body, item)
        self.run(node.orelse)

    on_AsyncFor = on_For

    def on_While(self, node: ast.While) -> None:
        self.loop(node, node.body, None)
        self.run(node.orelse)

    def loop(
        self, node: ast.For | ast.AsyncFor | ast.While, body: list[ast.stmt], item: Value | None
    ) -> None:
        before = dict(self.env)
        for again in (1, 2) if self.steps < MAX_STEPS else (1,):
            self.iteration.append(again)
            with self.inside(node):
                if isinstance(node, ast.While):
                    self.truth(node.test)
                elif item is not None:
                    self.bind(node.target, item)
                self.run(body)
            self.iteration.pop()
        for name, value in before.items():
            if name not in self.env:
                self.env[name] = value

    def on_Try(self, node: ast.Try) -> bool:
        with self.inside(node):
            left = self.run(node.body)
        after = dict(self.env)
        for handler in node.handlers:
            if not self.run(handler.body):
                self.merge(after)
                left = False
        ended = left or self.run(node.orelse)
        return self.run(node.finalbody) or (ended and not node.handlers)

    on_TryStar = on_Try

    def on_With(self, node: ast.With | ast.AsyncWith) -> bool:
        for item in node.items:
            value = self.ev(item.context_expr)
            if item.optional_vars is not None:
                self.bind(item.optional_vars, value)
        with self.inside(node):
            return self.run(node.body)

    on_AsyncWith = on_With

    def on_Match(self, node: ast.Match) -> None:
        self.ev(node.subject)
        before = dict(self.env)
        merged = dict(self.env)
        for case in node.cases:
            self.restore(before)
            with self.inside(node):
                self.run(case.body)
            merged.update(self.env)
        self.restore(merged)
