"""Will an engine load this adapter, and apply all of it? From headers and config alone.

Engines differ in what they do with a part that they don't know: vLLM refuses the adapter, SGLang
and PEFT go on without it and serve something that nobody trained. The rules, and how sure they
are, stand in :mod:`tinkerlab.export.engine_rules`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tinkerlab.errors import InputError
from tinkerlab.export.adapter import Adapter, read_adapter
from tinkerlab.export.engine_rules import Outcome, common, peft, ranks, sglang, vllm
from tinkerlab.rehearsal.models.folders import read_config

_WORST: tuple[Outcome, ...] = ("applies all", "uncertain", "applies part", "refuses")


@dataclass(frozen=True)
class Fit:
    """The verdict on one adapter and one engine: first the verdict, then why, then what to do."""

    engine: str
    verdict: Outcome
    summary: str
    evidence: tuple[str, ...]
    fix: str

    @property
    def good(self) -> bool:
        return self.verdict == "applies all"

    def as_json(self) -> dict[str, Any]:
        """Return plain data for ``--json``."""
        return asdict(self) | {"good": self.good}


def check_engine(folder: Path, engine: str, base: Path | None = None) -> Fit:
    """Judge the adapter in ``folder`` for ``engine`` (``vllm``, ``sglang`` or ``peft``).

    Args:
        base: folder with the base model's config.json; without it, rules that depend on the
            architecture answer "uncertain", unless the adapter names a folder that is here.

    Raises:
        InputError: the folder is no adapter; ``base`` has no config; an unknown engine.
    """
    rules = {"vllm": vllm, "sglang": sglang, "peft": peft}
    if engine not in rules:
        raise InputError(f"unknown engine {engine!r}: choose one of {', '.join(rules)}")
    adapter = read_adapter(folder)
    config = _base_config(adapter, base)
    findings = [*common(adapter, engine), *rules[engine](adapter, config)]
    problems = [f for f in findings if f.outcome != "applies all"]
    verdict = max(findings, key=lambda finding: _WORST.index(finding.outcome)).outcome
    worst = [f for f in problems if f.outcome == verdict]
    shape = f"{len(adapter.pairs)} LoRA pairs of rank {ranks(adapter)}"
    if worst:
        summary = worst[0].text + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")
    else:
        summary = f"{shape}, all in places that it adapts"
    evidence = [shape, *(f"{f.outcome}: {f.text} [{f.source}]" for f in findings)]
    fixes = list(dict.fromkeys(f.fix for f in (worst or findings) if f.fix))
    return Fit(engine, verdict, summary, tuple(evidence), "; ".join(fixes))


def _base_config(adapter: Adapter, base: Path | None) -> dict[str, Any] | None:
    if base is not None:
        return read_config(base)
    named = adapter.config.get("base_model_name_or_path")
    if isinstance(named, str) and (Path(named) / "config.json").is_file():
        return read_config(Path(named))
    return None
