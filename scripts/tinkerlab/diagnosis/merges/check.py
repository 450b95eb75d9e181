"""The whole check, from folders to a diagnosis."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tinkerlab.diagnosis.findings import Diagnosis, Finding
from tinkerlab.diagnosis.merges import verdict
from tinkerlab.diagnosis.merges.adapters import LoraAdapter
from tinkerlab.diagnosis.merges.compare import Walk
from tinkerlab.diagnosis.merges.layouts import INTERLEAVED, Placer, Plan
from tinkerlab.diagnosis.merges.structure import check, check_index, listed
from tinkerlab.errors import InputError
from tinkerlab.export.checkpoint import Checkpoint, read_checkpoint


def check_merge(
    base_dir: Path, adapter_dir: Path, merged_dir: Path | None, say: Callable[[str], None]
) -> Diagnosis:
    """Compare ``merged_dir`` with base plus adapter; without it, only match the adapter's names.

    Raises:
        InputError: a folder that isn't what it should be; the same folder twice.
    """
    for folder in (base_dir, adapter_dir, merged_dir):
        if folder is not None and not folder.is_dir():
            kind = "a file, not a folder" if folder.exists() else "no such folder"
            raise InputError(f"{folder}: {kind}: give the folder of a model or an adapter")
    if merged_dir is not None and merged_dir.resolve() == base_dir.resolve():
        raise InputError(f"{merged_dir}: --base and --merged are the same folder")
    base = read_checkpoint(base_dir)
    adapter = LoraAdapter(adapter_dir)
    plan = Placer(adapter, base).place()
    diagnosis = Diagnosis("", {"adapter_modules": len(adapter.sites)})
    diagnosis.findings += check_index(base_dir, base)
    if adapter.empty:
        diagnosis.notes.append(
            f"{len(adapter.empty)} modules of the adapter are empty placeholders, for projections "
            f"that the model doesn't have ({listed(adapter.empty)})"
        )
    _describe(diagnosis, adapter, base, plan)
    if merged_dir is None:
        diagnosis.healthy = (
            f"each of the adapter's {len(adapter.sites)} modules has its tensor in the base"
        )
        diagnosis.notes.append("no values were compared: give --merged for that")
        diagnosis.findings += _adapter_findings(adapter, plan)
        return diagnosis
    merged = read_checkpoint(merged_dir)
    _compare(diagnosis, base, merged, adapter, plan, say)
    return diagnosis


def _compare(
    diagnosis: Diagnosis,
    base: Checkpoint,
    merged: Checkpoint,
    adapter: LoraAdapter,
    plan: Plan,
    say: Callable[[str], None],
) -> None:
    structure = check(base, merged, plan)
    walk = Walk(base, merged, adapter, plan, structure, base.model_type in INTERLEAVED)

    def progress(done: int, total: int, name: str) -> None:
        if total > 1:
            say(f"file {done + 1} of {total}: {name}")

    found = walk.run(progress)
    values = verdict.findings(found, plan)
    first = [finding for finding in structure.findings if finding.severity == "problem"]
    later = [finding for finding in structure.findings if finding.severity != "problem"]
    if plan.misfits:  # where the adapter doesn't fit, the merge's values say nothing more
        values = []
    diagnosis.findings += _adapter_findings(adapter, plan)
    diagnosis.findings += first + values + later
    diagnosis.notes += structure.notes
    diagnosis.checked |= {"tensors": found.tensors, "numbers": found.numbers}
    parts = [outcome for outcome in found.outcomes if outcome.module]
    for module, tensor in plan.by_value.items():
        diagnosis.notes.append(f"{module}: by its values, not its name, found in {tensor}")
    known = [out.worst for out in parts if out.cause == "right" and out.worst == out.worst]
    worst = max(known, default=0.0)
    diagnosis.healthy = (
        f"the merged model is the base plus the adapter: {len(parts)} changes in "
        f"{found.tensors - found.untouched} tensors are right to rounding"
        + (f" (within {worst:.2g})" if worst else " (to the last bit)")
        + f", {found.untouched} others are the base's"
    )
    diagnosis.details["outcomes"] = _table(found.outcomes)
    if found.kept is not None:
        diagnosis.details["kept_after_rounding"] = round(found.kept, 4)


def _adapter_findings(adapter: LoraAdapter, plan: Plan) -> list[Finding]:
    findings = []
    if plan.misfits:
        name = next(iter(plan.misfits))
        findings.append(
            Finding(
                "adapter-of-another-base",
                f"{len(plan.misfits)} of {len(adapter.sites)} modules of the adapter have another "
                "shape than the base's tensors",
                where=name,
                evidence=(
                    *(f"{module}: {why}" for module, why in list(plan.misfits.items())[:5]),
                    f"the adapter's config names {adapter.config.get('base_model_name_or_path')!r}",
                ),
                fix="give the base that the adapter was trained on",
            )
        )
    homeless = {
        name: why
        for name, why in plan.homeless.items()
        if name not in plan.misfits and name not in plan.by_value
    }
    strangers = dict.fromkeys(adapter.strangers, "not a factor that is known")
    if homeless or strangers:
        lost = homeless | strangers
        findings.append(
            Finding(
                "adapter-keys-unmatched",
                f"{len(lost)} of the adapter's keys match nothing in the base: a merge, or an "
                "engine, leaves them out silently",
                where=next(iter(lost)),
                evidence=tuple(f"{name}: {why}" for name, why in list(lost.items())[:5]),
                fix="give the base that the adapter was trained on; if it is, the names need "
                "translating before anything can apply them",
            )
        )
    odd = {
        site.module: f"rank {site.rank}, the config says {site.told_rank}"
        for site in adapter.sites.values()
        if site.rank != site.told_rank
    }
    if odd:
        findings.append(
            Finding(
                "adapter-rank-mismatch",
                f"{len(odd)} modules have another rank than adapter_config.json says, so that "
                "alpha / r depends on whom one believes",
                where=next(iter(odd)),
                evidence=tuple(f"{module}: {why}" for module, why in list(odd.items())[:5]),
                fix="put the right r (or a rank_pattern) into adapter_config.json; the values "
                "below are compared with the config's",
            )
        )
    zero = _all_zero(adapter)
    if zero:
        findings.append(
            Finding(
                "adapter-is-zero",
                "every B of the adapter is zero: it changes nothing, as before the first step",
                fix="take a checkpoint saved after training steps",
                severity="warning",
            )
        )
    return findings


def _all_zero(adapter: LoraAdapter) -> bool:
    for site in adapter.sites.values():
        for expert in range(site.experts or 1):
            if bool(adapter.factors(site.module, expert)[1].any()):
                return False
    return bool(adapter.sites) and not adapter.full


def _describe(diagnosis: Diagnosis, adapter: LoraAdapter, base: Checkpoint, plan: Plan) -> None:
    scales = sorted({round(site.scale, 6) for site in adapter.sites.values()})
    ranks = sorted({site.rank for site in adapter.sites.values()})
    diagnosis.details["adapter"] = {
        "ranks": ranks,
        "scales": scales,
        "modules": len(adapter.sites),
        "empty": len(adapter.empty),
        "tensors_targeted": len({key[0] for key in plan.parts}),
        "unmatched": sorted(plan.homeless),
        "misfits": sorted(plan.misfits),
    }
    said = ", ".join(f"{scale:g}" for scale in scales)
    diagnosis.notes.append(
        f"{base.model_type}: rank {', '.join(map(str, ranks))}, scale {said}; "
        f"{len({key[0] for key in plan.parts})} of {len(base.shapes)} tensors are targeted"
    )
    if plan.renamed:
        module, name = next(iter(plan.renamed.items()))
        if module != name:
            diagnosis.notes.append(f"names are translated: {module} is {name} in the base")


def _table(outcomes: list) -> list[dict]:
    """Outcomes by cause: how many, and where, for ``--json``."""
    causes: dict[str, list] = {}
    for outcome in outcomes:
        causes.setdefault(outcome.cause, []).append(outcome)
    return [
        {"cause": cause, "matrices": len(group), "where": verdict.where(group)}
        for cause, group in causes.items()
    ]
