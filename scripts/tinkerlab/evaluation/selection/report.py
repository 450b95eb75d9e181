"""``eval-report.md``: the verdict first, then what it rests on."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Any

from tinkerlab import cli
from tinkerlab.data.words import counted
from tinkerlab.evaluation.selection.document import Selection, because
from tinkerlab.evaluation.selection.layers import ERROR_RATE, Evaluation, Measured
from tinkerlab.evaluation.selection.logged import Logged

STATUS = {
    "chosen": "**take it**",
    "tied": "not told apart",
    "behind": "behind",
    "out": "out",
    "not measured": "not compared",
}
RULE = """\
1. The application evals decide; without any, the public benchmarks; without those, the held-out metric of the run.
2. Out is a checkpoint that is worse than the base model by more than noise, on what decides or on a public benchmark{drop}.
3. Of the others, all are tied whose difference to the best score, on the same items, may be noise.
4. Of the tied, those are dropped whose held-out metric is clearly worse than the best of them.
5. The earliest of the rest is taken: less training, less to over-fit, less forgotten."""


def render(selection: Selection, picture: str) -> str:
    """The page as Markdown, keys blanked; names that a user wrote cannot become markup."""
    return cli.redact("\n".join(_lines(selection, picture)) + "\n")


def _lines(selection: Selection, picture: str) -> Iterator[str]:
    chosen = selection.decision.chosen
    yield f"# Which checkpoint of {text(selection.run.path.resolve().name)}"
    yield ""
    yield f"**{text(selection.verdict[0].upper() + selection.verdict[1:])}**" + (
        f": `{chosen.sampler_path or chosen.state_path}`" if chosen else ""
    )
    yield ""
    for reason in because(selection):
        yield f"- {text(reason)}"
    yield ""
    yield f"![Every layer by optimizer step; the chosen checkpoint is marked]({picture})"
    yield ""
    if selection.warnings:
        yield "## Warnings"
        yield ""
        yield from (f"- {text(warning)}" for warning in selection.warnings)
        yield ""
    yield "## Checkpoints"
    yield ""
    yield from _table(selection)
    yield ""
    yield "## How far to trust this"
    yield ""
    yield from (f"- {line}" for line in _trust(selection))
    yield ""
    yield "## How it was decided"
    yield ""
    drop = f" (by more than {selection.max_drop:g} and noise)" if selection.max_drop else ""
    yield RULE.format(drop=drop)
    yield ""
    if selection.left_out:
        yield f"## Left out ({len(selection.left_out)})"
        yield ""
        yield from (f"- {text(line)}" for line in selection.left_out)
        yield ""
    yield "## Commands"
    for purpose, command in selection.commands.items():
        yield ""
        yield f"{purpose[0].upper()}{purpose[1:]}:"
        yield ""
        yield "```bash"
        yield command
        yield "```"


def text(value: str) -> str:
    """A line of ours around names of the user's: no HTML, no table cells, one line."""
    return html.escape(" ".join(value.split()), quote=False).replace("|", "\\|")


def _table(selection: Selection) -> Iterator[str]:
    logged, evaluations = selection.layers.logged, selection.evaluations
    head = ["checkpoint", "step"]
    head += [f"logged {text(logged.key)}"] if logged else []
    head += [f"{text(e.name)}, {counted(e.items, 'item')}" for e in evaluations]
    head += ["against the best (+ is better)", "against the base", "verdict"]
    yield f"| {' | '.join(head)} |"
    yield f"|{'|'.join([' --- '] + [' ---: '] * (len(head) - 2) + [' --- '])}|"
    if (logged and logged.base is not None) or any(e.base for e in evaluations):
        base = ["base model", "0"]
        base += [f"{logged.base:.4g}" if logged.base is not None else "-"] if logged else []
        base += ["-" if e.base_mean is None else f"{e.base_mean:.3f}" for e in evaluations]
        yield f"| {' | '.join([*base, '-', '-', '-'])} |"
    for standing in selection.decision.standings:
        name = standing.checkpoint.name
        row = [f"`{text(name)}`", str(standing.checkpoint.step)]
        row += [_logged(logged, name, standing.checkpoint.step)] if logged else []
        row += [_cell(evaluation, name) for evaluation in evaluations]
        best = selection.decision.best
        row.append("best" if best == standing.checkpoint else _or_dash(standing.to_best))
        row.append(_or_dash(standing.to_base))
        why = f": {text(standing.why)}" if standing.why else ""
        row.append(STATUS[standing.status] + why)
        yield f"| {' | '.join(row)} |"


def _or_dash(value: Any) -> str:
    return "-" if value is None else str(value)


def _logged(logged: Logged, name: str, step: int) -> str:
    if name not in logged.names:
        return "-"
    at = logged.at[name]
    return f"{logged.score(name):.4g}" + (f" (step {at})" if at != step else "")


def _cell(evaluation: Evaluation, name: str) -> str:
    if name not in evaluation.scores:
        return "-"
    low, high = evaluation.interval(name)
    return f"{evaluation.mean(name):.3f} ({low:.3f} to {high:.3f})"


def _trust(selection: Selection) -> Iterator[str]:
    decision, layer = selection.decision, selection.decision.layer
    others = max(decision.comparisons, 1)
    if isinstance(layer, Measured):
        yield (
            "Scores have 95 % bootstrap intervals over items. Differences are paired: both models"
            " answered the same items. The intervals of the differences to the best hold for all"
            f" {counted(others, 'comparison')} together at {100 * (1 - ERROR_RATE):.0f} % (each at"
            f" {100 * (1 - ERROR_RATE / others):.4g} %, Bonferroni), since the best of several noisy scores"
            " is partly the luckiest."
        )
    elif isinstance(layer, Logged) and layer.has_noise:
        yield (
            f"The run logged shares of {layer.items} items, not each item's score, so nothing is"
            " paired: the intervals follow from the number of items alone and are wider than"
            " paired ones would be."
        )
    else:
        yield (
            "The run logged means, not each item's score: no interval is available, and the best"
            " of the means was taken as it stands. `--evaluate` scores every checkpoint item by"
            " item."
        )
    if decision.compared > 1:
        yield (
            f"Winner's curse: a checkpoint picked from {decision.compared} by its score was"
            " probably lucky on these items, so its score is biased upwards. Do not report it:"
            " measure the chosen one again on items that chose nothing (first command below)."
        )
    benchmarks = selection.layers.benchmarks
    if benchmarks is not None and len(benchmarks.evaluations) > 1:
        count = len(benchmarks.evaluations)
        yield (
            f"Within each of the {count} benchmarks, the comparisons with the base model hold for"
            f" all its checkpoints together; over all of them, {count * ERROR_RATE / 2:.2g} falls"
            " are to be expected by chance alone."
        )
    yield "One run is one seed: another would have other checkpoints with other scores."
