"""From thousands of decisions on matrices to a few findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from tinkerlab.diagnosis.findings import Finding
from tinkerlab.diagnosis.merges import guesses as g
from tinkerlab.diagnosis.merges import outcomes as o
from tinkerlab.diagnosis.merges.compare import Comparison
from tinkerlab.diagnosis.merges.layouts import Plan
from tinkerlab.diagnosis.merges.outcomes import Outcome
from tinkerlab.diagnosis.merges.structure import listed
from tinkerlab.export.adapter import UNEMBEDDING

AGAIN = "merge with tinker-cookbook's build_hf_model, or run scripts/export_model.py"
# Untargeted tensors changed in so many places are not a slip but another base.
OTHER_BASE = 0.5
KEPT = 0.5  # share of the change that must survive rounding

_WHAT = {
    g.SWAPPED: (
        "gate and up are exchanged",
        "Tinker's w1 is the gate, w3 is up and w2 is down: map w1 to gate_proj, w3 to up_proj",
    ),
    g.FOR_INTERLEAVED: (
        "gate and up were taken for concatenated; this model interleaves them",
        "gate is gate_up_proj[..., 0::2], up is gate_up_proj[..., 1::2]",
    ),
    g.FOR_CONCATENATED: (
        "gate and up were taken for interleaved; this model concatenates them",
        "gate is the first half of gate_up_proj along its output dimension, up the second",
    ),
    g.MISPLACED: (
        "projections that share a matrix are in each other's rows",
        "stack the rows in the model's order, each as many as its B has",
    ),
    g.TRANSPOSED: ("the change was added transposed", "B A is [out, in]: transpose it only "
                   "where the tensor is stored [in, out]"),
    g.EXPERTS_TRANSPOSED: (
        "experts are transposed",
        "check whether this family stores experts as [expert, out, in] or [expert, in, out], and "
        "use transpose, never reshape or view",
    ),
    g.PACKED: (
        "the experts' factors were unpacked in the wrong order",
        "Tinker's factors are [expert, rank, dim]; PEFT's flat A lists experts one after the "
        "other (reshape(experts, rank, in)), its flat B alternates them (reshape(out, rank, "
        "experts))",
    ),
    g.PERMUTED: ("experts are in each other's place", "keep the experts' numbers as they are; "
                 "sort names by number, not as text (10 comes before 2)"),
    g.LAYERS: ("layers are in each other's place", "keep the layers' numbers as they are; sort "
               "names by number, not as text"),
    g.PROJECTIONS: ("projections are in each other's place", AGAIN),
    o.TWICE: ("the adapter was added twice", "merge once, from the untouched base"),
    o.SUBTRACTED: ("the adapter was subtracted", "add B A; PEFT's unmerge() or delete_adapter "
                   "must not run after the merge"),
    o.NOT_FINITE: ("the merged model holds NaN or infinity", AGAIN),
    o.WRONG_TENSOR: ("the change of one module was added to a tensor in which it doesn't belong",
                     AGAIN),
    o.INTO_EMBEDDING: (
        "what the adapter adds to the output layer was added to the input embedding",
        "give the merged model an lm_head.weight of its own (embedding plus B A), leave the "
        "embedding as it is, set tie_word_embeddings to false: scripts/export_model.py does",
    ),
    o.ANOTHER_ADAPTER: (
        "another adapter was merged: the change is one of low rank, but not this one's",
        "give the adapter, and its checkpoint, that was merged; or merge this one",
    ),
    o.NOT_REPLACED: (
        "tensors that the adapter brings whole were not copied",
        "copy the adapter's modules_to_save into the merged model",
    ),
    o.UNEXPLAINED: (
        "differs from base plus adapter in no way that is known",
        AGAIN + "; if this is its output, report it with these figures",
    ),
}  # fmt: skip


def findings(found: Comparison, plan: Plan) -> list[Finding]:
    """Return one finding for each cause, the most important first."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in found.outcomes:
        groups.setdefault(outcome.cause, []).append(outcome)
    right = groups.pop(o.RIGHT, [])
    result: list[Finding] = []
    if o.NOT_APPLIED in groups:
        result.append(_not_applied(groups.pop(o.NOT_APPLIED), found.outcomes, plan))
    if o.SCALING in groups:
        result += _scaling(groups.pop(o.SCALING))
    changed = groups.pop(o.CHANGED, [])
    if changed:
        other = _other_base(changed, found)
        result.append(_changed(changed, found, other))
        if other:  # which explains what the layouts don't
            groups.pop(o.UNEXPLAINED, None)
    for cause, group in groups.items():
        if cause == o.LOW_PRECISION:
            result.append(_low(group))
        elif cause == o.ROUNDED:
            result.append(_rounded(group))
        else:
            what, fix = _WHAT[cause]
            result.append(
                Finding(cause, f"{_many(group)}{what}", group[0].place, _evidence(group), fix)
            )
    if found.kept is not None and found.kept < KEPT and right and not result:
        result.append(_lost(found.kept))
    packed = [*found.unchecked, *dict.fromkeys(plan.quantised.values())]
    if packed:
        result.append(
            Finding(
                "quantised-tensors-not-checked",
                f"{len(packed)} tensors are in a quantised format and were not compared",
                where=packed[0],
                evidence=(listed(packed),),
                fix="compare logprobs with the service instead, or dequantise both models",
                severity="warning",
            )
        )
    # Another base explains every other difference, so it comes first.
    result.sort(key=lambda finding: finding.cause != "merged-from-another-base")
    return result


def _many(group: list[Outcome]) -> str:
    count = len(group)
    return f"in {count} matrices " if count > 1 else "in one matrix "


def where(group: Iterable[Outcome], every: Iterable[Outcome] = ()) -> list[str]:
    """Say in which layers, projections and experts the outcomes are."""
    group, facts = list(group), []
    values: list[tuple[str, Callable[[Outcome], object]]] = [
        ("layers", lambda out: out.layer),
        ("projections", lambda out: out.projection),
        ("experts", lambda out: out.expert),
    ]
    for word, value in values:
        seen = sorted({value(out) for out in group if value(out) not in (None, "")}, key=_order)
        if seen:
            of = {value(out) for out in every if value(out) not in (None, "")}
            total = f" of {len(of)}" if of and len(of) > len(seen) else ""
            facts.append(f"{word}{total}: {listed([str(item) for item in seen])}")
    return facts


def _order(value: object) -> tuple[bool, int, str]:
    return (isinstance(value, str), value if isinstance(value, int) else 0, str(value))


def _evidence(group: list[Outcome]) -> tuple[str, ...]:
    facts = [says for says, _ in Counter(out.says for out in group if out.says).most_common(3)]
    worst = max(group, key=lambda out: out.worst if out.worst == out.worst else 0.0)
    if worst.worst == worst.worst:
        line = f"{worst.place}: up to {worst.worst:.2g} from base + B A * scale"
        if worst.left is not None and worst.cause != o.LOW_PRECISION:
            # The layouts are accepted only within rounding; a tensor that got another's change
            # may have more wrong with it.
            proved = worst.cause not in (o.INTO_EMBEDDING, o.WRONG_TENSOR)
            word = ", which is rounding," if proved else ""
            line += f"; {worst.left:.2g}{word} when this cause is reckoned in"
        facts.append(line)
    odd = {f"{out.factor:.4g}" for out in group if out.factor != 1 and out.cause in _LAYOUTS}
    if odd:
        facts.append(f"and on top of that a factor of {', '.join(sorted(odd)[:3])}")
    if group[0].cause == o.UNEXPLAINED:
        experts = [out for out in group if out.expert is not None][:5]
        facts += [f"expert {out.expert}: up to {out.worst:.2g}" for out in experts]
    return (*facts, *where(group))


_LAYOUTS = {
    g.SWAPPED,
    g.FOR_INTERLEAVED,
    g.FOR_CONCATENATED,
    g.MISPLACED,
    g.TRANSPOSED,
    g.EXPERTS_TRANSPOSED,
    g.PACKED,
    g.PERMUTED,
    g.LAYERS,
    g.PROJECTIONS,
}


def _not_applied(group: list[Outcome], outcomes: list[Outcome], plan: Plan) -> Finding:
    """Say which part of the adapter is missing, and by which rule it was missed."""
    others = [out for out in outcomes if out.module and out.cause != o.NOT_APPLIED]
    missing = {out.module for out in group}
    facts = [f"{len(group)} of {len(group) + len(others)} matrices are the base's, bit for bit"]
    example = group[0]
    if others and all(module.rsplit(".", 1)[-1] in UNEMBEDDING for module in missing):
        return Finding(
            "unembedding-not-applied",
            "what the adapter adds to the output layer was not merged",
            example.place,
            (*facts, *where(group)),
            "add it to lm_head.weight; a base that ties its embedding needs one of its own",
        )
    renamed = {module for module in missing if module in plan.renamed}
    prefixed = {
        module
        for module, name in plan.renamed.items()
        if "language_model." in name and "language_model." not in module
    }
    layers = {module for module in missing if module.rsplit(".", 1)[-1] not in UNEMBEDDING}
    if layers and layers <= prefixed and not any(out.module in prefixed for out in others):
        module = min(layers)
        facts.append(f"the adapter says {module}, the model says {plan.renamed[module]}")
        return Finding(
            "language-model-prefix-missing",
            "the adapter was not applied: its names lack the language_model prefix of this model's",
            example.place,
            (*facts, *where(group)),
            "add the prefix to the adapter's names before looking tensors up, and stop when "
            "a name matches nothing",
        )
    if renamed == missing and not any(out.module in plan.renamed for out in others):
        module = min(missing)
        facts.append(f"the adapter says {module}, the model says {plan.renamed[module]}")
        if others or len(missing) < len(plan.renamed):
            return Finding(
                "adapter-names-not-translated",
                "modules whose names differ between adapter and model were not applied",
                example.place,
                (*facts, *where(group)),
                "translate the names, and stop when one matches nothing",
            )
    fix = "see that the merge found each of the adapter's names; " + AGAIN
    if not others:
        return Finding(
            "adapter-not-applied",
            "the adapter was not applied: the merged model is the base",
            example.place,
            (*facts, *where(group)),
            fix,
        )
    for word, cause, value in _KINDS:
        mine, theirs = {value(out) for out in group}, {value(out) for out in others}
        if mine and theirs and None not in mine and not mine & theirs:
            return Finding(
                cause,
                f"only some {word} were merged",
                example.place,
                (*facts, *where(group, outcomes)),
                fix,
            )
    return Finding(
        "adapter-partly-applied",
        "parts of the adapter were not merged",
        example.place,
        (*facts, *where(group, outcomes)),
        fix,
    )


_KINDS: tuple[tuple[str, str, Callable[[Outcome], object]], ...] = (
    ("layers", "only-some-layers-merged", lambda out: out.layer),
    ("projections", "only-some-projections-merged", lambda out: out.projection),
    ("experts", "only-some-experts-merged", lambda out: out.expert),
)


def _scaling(group: list[Outcome]) -> list[Finding]:
    """One finding: the factor, or the range of factors."""
    factors = Counter(round(out.factor, 4) for out in group)
    values = ", ".join(f"{value:.4g}" for value, _ in factors.most_common(4))
    return [
        Finding(
            o.SCALING,
            f"the adapter was added with {values} times its scale",
            group[0].place,
            (
                f"factor by least squares over {len(group)} matrices: {min(factors):.4g}"
                + (f" to {max(factors):.4g}" if len(factors) > 1 else ""),
                *_evidence(group),
            ),
            "multiply B A by lora_alpha / r (lora_alpha / sqrt(r) only with use_rslora, a "
            "module's own values where rank_pattern or alpha_pattern names it)",
        )
    ]


def _other_base(changed: list[Outcome], found: Comparison) -> bool:
    """Whether so much differs, targeted or not, that the merge must have begun elsewhere."""
    targeted = [out for out in found.outcomes if out.module]
    wrong = [out for out in targeted if out.cause != o.RIGHT]
    # Norms may be all ones in any base: matrices tell, where there are any.
    matrices = [out for out in changed if out.matrix]
    differ, of = (
        (len(matrices), found.untouched_matrices)
        if found.untouched_matrices
        else (len(changed), found.untouched)
    )
    return differ > OTHER_BASE * of and len(wrong) > OTHER_BASE * len(targeted)


def _changed(group: list[Outcome], found: Comparison, other: bool) -> Finding:
    tensors = {out.place.split("[")[0] for out in group}
    worst = max(group, key=lambda out: out.relative)
    facts = (
        f"{len(tensors)} of {found.untouched} tensors that the adapter doesn't target differ",
        f"{worst.place}: change of {worst.relative:.2g} times its size (root mean square), up "
        f"to {worst.worst:.2g}",
        *where(group),
    )
    if other:
        return Finding(
            "merged-from-another-base",
            "the merged model comes from another base: tensors differ that nothing targets",
            worst.place,
            facts,
            "give the base that was merged into; if it was one that had been quantised (QLoRA) or "
            "tuned further, merge into the base that was trained on",
        )
    return Finding(
        o.CHANGED,
        f"{len(tensors)} tensors differ from the base though the adapter doesn't target them",
        worst.place,
        facts,
        "merge into an untouched copy of the base",
    )


def _low(group: list[Outcome]) -> Finding:
    return Finding(
        o.LOW_PRECISION,
        f"{_many(group)}the change was computed in 16 bits, not in float32",
        group[0].place,
        _evidence(group),
        "cast A and B to float32, multiply, add, and round once at the end",
        severity="warning",
    )


def _rounded(group: list[Outcome]) -> Finding:
    return Finding(
        o.ROUNDED,
        f"{len(group)} tensors of the base lost precision: they went through a 16-bit type",
        group[0].place,
        tuple(where(group)),
        "load the base in the type in which it is stored (dtype='auto')",
        severity="warning",
    )


def _lost(kept: float) -> Finding:
    return Finding(
        "adapter-lost-in-rounding",
        f"rounding to the storage type leaves {max(0.0, kept):.0%} of the adapter's change",
        evidence=(
            "the merge is right, but the change is smaller than the steps between two numbers "
            "that this type can store",
        ),
        fix="serve the adapter beside the base, unmerged, or save the merged model in float32",
        severity="warning",
    )
