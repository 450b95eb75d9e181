"""Findings about evaluations and tools: zero throughout, rejected answers, unparsed tool calls."""

from __future__ import annotations

from collections.abc import Iterator

from tinkerlab.diagnosis.findings import Finding
from tinkerlab.diagnosis.run_analysis import names, thresholds
from tinkerlab.diagnosis.run_analysis.rollouts import EvaluationTotals
from tinkerlab.diagnosis.run_analysis.run import Run


def check(run: Run) -> Iterator[Finding]:
    """All findings about evaluations and tool calls."""
    told = False
    for evaluation in run.evaluations.values():
        for finding in _evaluation(evaluation):
            told = True
            yield finding
    if not told:
        yield from zero_metrics(run)
    yield from unparsed_tools(run)


def _evaluation(evaluation: EvaluationTotals) -> Iterator[Finding]:
    result = evaluation.result
    count = evaluation.count or result.get("num_examples") or 0
    if not isinstance(count, int) or count < thresholds.ZERO_SCORES:
        return
    right = evaluation.right_but_zero
    all_zero = evaluation.zero == evaluation.count if evaluation.count else evaluation.score == 0
    where = str(result.get("name") or evaluation.name)
    evidence = [f"score {evaluation.score} over {count} examples"] if evaluation.score == 0 else []
    for key in ("model", "renderer"):
        if result.get(key):
            evidence.append(f"{key}: {result[key]}")
    if right and right >= thresholds.RIGHT_SHARE * max(evaluation.judged, 1):
        ends = evaluation.ends_of_right
        evidence += [
            f"{right} of {evaluation.judged} replies that got zero state the reference answer",
            "their parse ended with: " + ", ".join(f"{end} {n}x" for end, n in ends.most_common()),
            *evaluation.right_examples,
        ]
        by_eos = sum(n for end, n in ends.items() if "eos" in end)
        if by_eos >= 0.8 * right:
            yield Finding(
                cause="eos-taken-for-parse-failure",
                what=f"{right} right answers are graded zero: replies that end with EOS count as"
                " parse failures",
                where=where,
                evidence=tuple(evidence),
                fix="in the grader take both clean ends: `termination.is_clean` (STOP_SEQUENCE or"
                " EOS), not `.is_stop_sequence`. A base model has no stop sequence to end with,"
                " so with role_colon it ends by EOS. Then grade the stored replies again"
                " (tinker_cookbook.eval.benchmarks regrade_trajectories)",
            )
        else:
            yield Finding(
                cause="right-answers-graded-zero",
                what=f"{right} right answers are graded zero",
                where=where,
                evidence=tuple(evidence),
                fix="run the grader by hand on one of these replies: look at how it extracts the"
                " answer and at what it does with the parse's termination",
            )
    elif all_zero:
        if evaluation.errors:
            evidence.append(f"{evaluation.errors} of {evaluation.count} examples failed")
        if evaluation.cut:
            evidence.append(f"{evaluation.cut} of {evaluation.count} replies hit the token limit")
        yield Finding(
            cause="scores-all-zero",
            what=f"every one of {count} scores is exactly zero",
            where=where,
            evidence=tuple(evidence) or ("no reply states its reference answer",),
            fix="exactly zero is rarely a model's ability: read three replies beside their"
            " references; check the renderer, max_tokens and the grader",
        )


def zero_metrics(run: Run) -> Iterator[Finding]:
    """A logged score that is exactly zero at every evaluation."""
    found = []
    for key in run.metrics.keys:
        if run.is_distillation and key.endswith("reward/total"):
            continue
        curve = run.metrics.curve(key) if names.is_score(key) else None
        if curve is not None and len(curve) >= 3 and not curve.values.any():
            found.append((key, len(curve)))
    if not found:
        return
    yield Finding(
        cause="scores-all-zero",
        what=f"{found[0][0]} is exactly zero at each of {found[0][1]} evaluations",
        evidence=tuple(f"{key}: 0 at {count} evaluations" for key, count in found[:6]),
        fix="exactly zero is rarely a model's ability: read three replies beside their"
        " references; check the renderer, max_tokens, and a grader that takes EOS for a parse"
        " failure",
    )


def unparsed_tools(run: Run) -> Iterator[Finding]:
    """Tool calls are written and none is ever parsed."""
    sources = [
        ("training rollouts", run.rollouts),
        *((f"evaluation {e.name}", e) for e in run.evaluations.values()),
    ]
    for name, totals in sources:
        enough = max(thresholds.MARKUP_ROLLOUTS, thresholds.MARKUP_SHARE * totals.count)
        if totals.with_markup < enough or totals.parsed:
            continue
        evidence = [
            f"{name}: {totals.with_markup:,} of {totals.count:,} replies hold tool-call markup,"
            " none led to a tool call",
            f"for example: {totals.markup_example}",
        ]
        if isinstance(errors := getattr(totals, "parse_errors", 0), int) and errors:
            evidence.append(f"parse_error is set in {errors:,} turns")
        yield _unparsed(name, evidence)
        return
    if run.rollouts.count == 0 and not run.evaluations:
        marked, answered = run.logtree_markup()
        if marked >= thresholds.MARKUP_ROLLOUTS and not answered:
            yield _unparsed(
                "logtree files",
                [f"{marked} logtree files hold tool-call markup, none a tool's result"],
            )


def _unparsed(where: str, evidence: list[str]) -> Finding:
    return Finding(
        cause="tool-calls-not-parsed",
        what="the model writes tool calls and none is ever parsed",
        where=where,
        evidence=tuple(evidence),
        fix="use the renderer that reads this markup (Qwen3.5 and later write <function=...>"
        " inside <tool_call>, Qwen3 writes JSON there): get_recommended_renderer_name(model),"
        " and give the tools to the renderer's tool prompt",
        then="python scripts/renderer_check.py MODEL",
    )
