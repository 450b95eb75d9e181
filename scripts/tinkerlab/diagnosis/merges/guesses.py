"""The known wrong ways to add an adapter to a matrix, each as parts that can be tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations

from tinkerlab.diagnosis.merges.adapters import LoraAdapter
from tinkerlab.diagnosis.merges.layouts import Part
from tinkerlab.diagnosis.merges.matrices import Matrix

SWAPPED = "gate-up-swapped"
FOR_INTERLEAVED = "concatenated-for-interleaved"
FOR_CONCATENATED = "interleaved-for-concatenated"
MISPLACED = "split-rows-misplaced"
TRANSPOSED = "delta-transposed"
EXPERTS_TRANSPOSED = "experts-transposed"
PACKED = "experts-packed-wrong"
PERMUTED = "experts-permuted"
LAYERS = "layers-permuted"
PROJECTIONS = "projections-swapped"

_FIRST = {"w1", "gate_proj"}
_SECOND = {"w3", "up_proj"}


@dataclass(frozen=True)
class Guess:
    """One way in which a matrix may have been merged wrongly."""

    cause: str
    says: str
    parts: tuple[Part, ...]


def leaf(part: Part) -> str:
    return part.module.rsplit(".", 1)[-1]


def is_gate_up(parts: list[Part]) -> bool:
    """Whether these are a gate and an up projection that share a matrix."""
    names = {leaf(part) for part in parts}
    return len(parts) == 2 and bool(names & _FIRST) and bool(names & _SECOND)


def guesses(adapter: LoraAdapter, matrix: Matrix, parts: list[Part]) -> Iterator[Guess]:
    """Yield what a wrong merge may have done with ``parts``, the likeliest first.

    What was added from another expert, layer or projection is left to a search.
    """
    for guess in (*_layouts(parts), *_joint(adapter, matrix, parts)):
        if all(_fits(adapter, matrix, part) for part in guess.parts):
            yield guess
    yield from _turned(adapter, matrix, parts)
    sites = [adapter.sites[part.module] for part in parts]
    if all(site.experts > 1 and site.form in ("stacked", "flat") for site in sites):
        for misread, says in (
            ("B", "B's experts read in the wrong packing order"),
            ("A", "A's experts read in the wrong packing order"),
            ("AB", "the experts of A and of B read in the wrong packing order"),
        ):
            yield Guess(
                PACKED,
                f"{says} (experts and ranks exchanged)",
                tuple(replace(part, misread=misread) for part in parts),
            )


def _layouts(parts: list[Part]) -> Iterator[Guess]:
    if is_gate_up(parts):
        yield from _gate_up(*sorted(parts, key=lambda part: leaf(part) in _SECOND))
    elif len(parts) > 1 and all(part.outputs.step == 1 for part in parts):
        yield from _stacked(sorted(parts, key=lambda part: part.outputs.start))


def _joint(adapter: LoraAdapter, matrix: Matrix, parts: list[Part]) -> Iterator[Guess]:
    """PEFT's factors of gate and up together: taken apart, or put together, the wrong way."""
    if len(parts) != 1 or adapter.sites[parts[0].module].form != "flat":
        return
    part, rows = parts[0], adapter.sites[parts[0].module].rows
    half = rows // 2
    if part.of_rows is not None and len(part.of_rows) == half:
        other = range(half, rows) if part.of_rows.start == 0 else range(half)
        yield Guess(
            SWAPPED, "up added to gate_proj and gate to up_proj", (replace(part, of_rows=other),)
        )
        odd = range(int(part.of_rows.start > 0), rows, 2)
        says = "gate and up taken apart as if they alternated, while B has gate first, then up"
        yield Guess(FOR_CONCATENATED, says, (replace(part, of_rows=odd),))
    elif part.of_rows is None and matrix.key[0].endswith("gate_up_proj"):
        halves, alternate = (
            (range(half), range(half, rows)),
            (range(0, rows, 2), range(1, rows, 2)),
        )
        for cause, here, there, says in (
            (SWAPPED, halves, halves[::-1], "the halves of gate_up_proj exchanged"),
            (SWAPPED, alternate, alternate[::-1], "alternating gate and up exchanged"),
            (FOR_CONCATENATED, halves, alternate, "halves spread over alternating outputs"),
            (FOR_INTERLEAVED, alternate, halves, "alternating outputs gathered into halves"),
        ):
            yield Guess(
                cause,
                says,
                tuple(
                    replace(part, of_rows=of, outputs=outputs)
                    for of, outputs in zip(here, there, strict=True)
                ),
            )


def _gate_up(gate: Part, up: Part) -> Iterator[Guess]:
    width = len(gate.outputs)
    if len(up.outputs) != width:
        return
    interleaved = gate.outputs.step == 2
    halves = (range(width), range(width, 2 * width))
    alternate = (range(0, 2 * width, 2), range(1, 2 * width, 2))
    right, wrong = (alternate, halves) if interleaved else (halves, alternate)
    cause = FOR_INTERLEAVED if interleaved else FOR_CONCATENATED
    here, there = ("interleaved", "concatenated")[:: 1 if interleaved else -1]
    swapped = "up (w3) added where gate (w1) belongs, and gate where up belongs"
    other = f"gate and up added as if {there}, while this model keeps them {here}"

    def place(both: tuple[range, range]) -> tuple[Part, Part]:
        return replace(gate, outputs=both[0]), replace(up, outputs=both[1])

    yield Guess(SWAPPED, swapped, place((right[1], right[0])))
    yield Guess(cause, other, place(wrong))
    yield Guess(cause, f"{other}; up taken for gate as well", place((wrong[1], wrong[0])))


def _stacked(parts: list[Part]) -> Iterator[Guess]:
    names = [leaf(part) for part in parts]
    for order in permutations(range(len(parts))):
        if list(order) == sorted(order):
            continue
        start, moved = parts[0].outputs.start, []
        for number in order:
            size = len(parts[number].outputs)
            moved.append(replace(parts[number], outputs=range(start, start + size)))
            start += size
        said = ", ".join(names[number] for number in order)
        yield Guess(
            MISPLACED, f"rows added in the order {said}; right is {', '.join(names)}", tuple(moved)
        )
    total = parts[-1].outputs.stop
    third = total // len(parts)
    if any(len(part.outputs) != third for part in parts):
        even = [
            replace(part, outputs=range(i * third, i * third + len(part.outputs)))
            for i, part in enumerate(parts)
        ]
        if even[-1].outputs.stop <= total:
            yield Guess(
                MISPLACED,
                f"rows added at equal steps of {third}, though {', '.join(names)} have "
                f"{', '.join(str(len(part.outputs)) for part in parts)} rows",
                tuple(even),
            )
    piled = [replace(part, outputs=range(len(part.outputs))) for part in parts]
    yield Guess(MISPLACED, f"{', '.join(names)} all added from row 0 on", tuple(piled))
    yield Guess(
        MISPLACED,
        f"{', '.join(names)} all added from row 0 on, each over the one before",
        tuple(_uncovered(piled)),
    )


def _uncovered(parts: list[Part]) -> Iterator[Part]:
    """What is left where later parts overwrite earlier ones."""
    for number, part in enumerate(parts):
        over = max((len(later.outputs) for later in parts[number + 1 :]), default=0)
        if len(part.outputs) > over:
            rest = range(over, len(part.outputs))
            yield replace(part, outputs=rest, of_rows=rest)


def _turned(adapter: LoraAdapter, matrix: Matrix, parts: list[Part]) -> Iterator[Guess]:
    experts = any(adapter.sites[part.module].experts > 1 for part in parts)
    cause = EXPERTS_TRANSPOSED if experts else TRANSPOSED
    flipped = tuple(replace(part, transposed=not part.transposed) for part in parts)
    if all(_fits(adapter, matrix, part) for part in flipped):
        yield Guess(cause, "the transpose of B A was added", flipped)
    yield Guess(
        cause,
        "the transpose of B A was added, its numbers poured into the tensor's shape (reshape or "
        "view where transpose was meant)",
        tuple(replace(part, reshaped=True) for part in parts),
    )


def _fits(adapter: LoraAdapter, matrix: Matrix, part: Part) -> bool:
    outputs, inputs = matrix.shape[::-1] if part.transposed else matrix.shape
    site = adapter.sites[part.module]
    rows = len(part.of_rows) if part.of_rows is not None else site.rows
    return (
        inputs == site.columns
        and rows == len(part.outputs)
        and part.outputs[0] >= 0
        and part.outputs[-1] < outputs
    )
