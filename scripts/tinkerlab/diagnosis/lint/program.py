"""One script as the rules see it: its tree, its lines, and what it does from each start."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from tinkerlab.diagnosis.lint import sdk
from tinkerlab.diagnosis.lint.functions import parameters
from tinkerlab.diagnosis.lint.values import NOTHING, Event, Value, join
from tinkerlab.diagnosis.lint.walker import Walker

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Program:
    """A parsed script.

    Attributes:
        path: where it was read from.
        tree: its syntax tree.
        lines: its source, line by line.
        traces: what happens from each start: the module itself, then every function that
            nothing before it has followed.
        runs_itself: whether importing or running the file does the work, so that what the
            file leaves out is really left out.
    """

    path: Path
    tree: ast.Module
    lines: list[str]
    traces: list[list[Event]] = field(default_factory=list)
    runs_itself: bool = False
    _attributes: dict[ast.ClassDef, dict[str, Value]] = field(default_factory=dict)

    @property
    def events(self) -> Iterator[Event]:
        for trace in self.traces:
            yield from trace

    def source(self, node: ast.AST) -> str:
        """The line on which a node stands."""
        number = getattr(node, "lineno", 1)
        return self.lines[number - 1].strip() if number <= len(self.lines) else ""

    def strings(self) -> Iterator[tuple[ast.Constant, str]]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node, node.value

    def attributes_of(self, definition: ast.ClassDef, env: dict[str, Value]) -> dict[str, Value]:
        """``self.x`` of a class: its methods, its fields, and what its methods assign."""
        if definition in self._attributes:
            return self._attributes[definition]
        found: dict[str, Value] = {}
        self._attributes[definition] = found
        for statement in definition.body:
            if isinstance(statement, Function):
                found[f"self.{statement.name}"] = Value("function", data=(statement, env))
            elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                kind = sdk.kind_of_annotation(ast.unparse(statement.annotation))
                found[f"self.{statement.target.id}"] = Value(kind, data=statement.target.id)
        methods = [part for part in definition.body if isinstance(part, Function)]
        for method in sorted(methods, key=lambda part: part.name != "__init__"):
            walker = Walker(self, {**env, **found})
            walker.env.update(parameters(method, {}, skip_self=True))
            walker.stack.append(method)
            walker.run(method.body)
            for name, value in walker.env.items():
                if name.startswith("self.") and value.kind != "function":
                    known = found.get(name, NOTHING)
                    found[name] = join(known, earlier(value)) if known.kind else earlier(value)
        return found


def earlier(value: Value) -> Value:
    """A client that was there before the start of this trace."""
    return replace(value, born=0, refreshed=False) if value.born > 0 else value


def follow(path: Path, tree: ast.Module, lines: list[str]) -> Program:
    """Follow a script from all its starts."""
    program = Program(path, tree, lines)
    env: dict[str, Value] = {}
    for statement in tree.body:  # functions may be used above the place where they stand
        if isinstance(statement, Function):
            env[statement.name] = Value("function", data=(statement, env))
        elif isinstance(statement, ast.ClassDef):
            env[statement.name] = Value("class", data=(statement, env))
    module = Walker(program, env)
    module.run(tree.body)
    program.traces.append(module.events)
    program.runs_itself = any(
        event.what == "submit" and event.method == "optim_step" for event in module.events
    )
    followed = {node for event in module.events for node in event.stack}
    for owner, function in starts(tree):
        if function in followed:
            continue
        start = {name: earlier(value) for name, value in env.items()}
        if owner is not None:
            start.update(program.attributes_of(owner, env))
        start.update(parameters(function, {}, skip_self=owner is not None))
        walker = Walker(program, start)
        walker.stack.append(function)
        walker.run(function.body)
        program.traces.append(walker.events)
        followed |= {node for event in walker.events for node in event.stack}
    return program


def starts(tree: ast.Module) -> list[tuple[ast.ClassDef | None, Function]]:
    """Every function with its class; those that nothing in the file calls come first."""
    called = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for name in [getattr(node.func, "id", getattr(node.func, "attr", ""))]
    }
    found: list[tuple[ast.ClassDef | None, Function]] = []

    def collect(node: ast.AST, owner: ast.ClassDef | None) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                collect(child, child)
            elif isinstance(child, Function):
                found.append((owner, child))
                collect(child, None)
            else:
                collect(child, owner)

    collect(tree, None)
    return sorted(found, key=lambda pair: pair[1].name in called)
