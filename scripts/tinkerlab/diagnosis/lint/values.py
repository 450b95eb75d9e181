"""What a name or an expression of the script holds, as far as reading it tells."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

Place = tuple[int, int]


def place(node: ast.AST) -> Place:
    """Line and column of a node: the identity of a call across passes over a loop."""
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


@dataclass(frozen=True, eq=False)  # by identity: values hold one another
class Value:
    """One value.

    Attributes:
        kind: "training", "sampling", "service", "rest" (clients); "future", "coroutine",
            "task" (of something not there yet); "output", "response" and other results;
            "import", "function", "instance", "class"; "const", "text", "tokens", "tensor",
            "dict", "list", "path", "termination"; "" when nothing is known.
        of: what a future, coroutine or list gives.
        call: the submission that made a future, or the result of one.
        origins: places of the SDK calls whose results this value depends on.
        items: the parts of a tuple, list or dict display.
        data: by kind: a constant, an imported path, a function's node and environment, a
            path's flavour.
        born: when a client was made, as the index of the event.
        refreshed: the value of one branch only; in the other it is an older one.
    """

    kind: str = ""
    of: Value | None = None
    call: Event | None = None
    origins: frozenset[Place] = frozenset()
    items: Any = None
    data: Any = None
    born: int = -1
    refreshed: bool = False

    def tainted(self, origins: Iterable[Place]) -> Value:
        added = frozenset(origins)
        return self if added <= self.origins else replace(self, origins=self.origins | added)


NOTHING = Value()


@dataclass(eq=False)
class Event:
    """One thing that the script does, in the order in which it does it.

    Attributes:
        what: "submit", "wait", "call", "truth", "attribute", "branch", "unresolved"
            (a future used as the client that it will give), "misused" (the result of a
            coroutine), "dropped" (a coroutine that nobody awaits), "handed" (a client given
            to a function that is not in the file).
        node: the expression.
        stack: the enclosing loops, tries, withs, branches and functions, outermost first;
            through calls of the script's own functions.
        method: the SDK method, attribute or dotted name of the called function.
        client: which client it is about: the place where it was made, or its name.
        args: arguments by position and by name.
        receiver: of a call to a method: what stands before the dot.
        iteration: for each enclosing loop, which pass over it this is (1 or 2).
        how: of a wait: "result", "await" or "gather".
        deprecated: submitted through a deprecated ``*_async`` method.
    """

    what: str
    node: ast.AST
    index: int
    stack: tuple[ast.AST, ...]
    method: str = ""
    value: Value = NOTHING
    client: Any = None
    args: dict[int | str, Value] = field(default_factory=dict)
    receiver: Value = NOTHING
    iteration: tuple[int, ...] = ()
    how: str = ""
    deprecated: bool = False

    @property
    def loops(self) -> tuple[ast.AST, ...]:
        return tuple(node for node in self.stack if isinstance(node, LOOPS))


COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
LOOPS = (ast.For, ast.AsyncFor, ast.While, *COMPREHENSIONS)


def join(first: Value, second: Value) -> Value:
    """The value after two branches: the one that is known; of two clients the newer."""
    if first is second or not second.kind:
        known, other = first, second
    elif not first.kind:
        known, other = second, first
    elif {first.kind, second.kind} & {"const", "default"}:
        # A name that one branch sets to a constant is no constant, unless both agree.
        known, other = (second, first) if first.kind in ("const", "default") else (first, second)
        if known.kind == other.kind and known.data != other.data:
            return Value(origins=first.origins | second.origins)
    else:
        known, other = (second, first) if second.born >= first.born else (first, second)
    origins = first.origins | second.origins
    older = known.kind == other.kind and known.born != other.born
    if known.origins == origins and not older:
        return known
    return replace(known, origins=origins, refreshed=known.refreshed or older)


def mixed(values: Iterable[Value]) -> frozenset[Place]:
    """Everything that any of these depends on."""
    found: set[Place] = set()
    for value in values:
        found |= value.origins
        if value.of is not None:
            found |= value.of.origins
    return frozenset(found)
