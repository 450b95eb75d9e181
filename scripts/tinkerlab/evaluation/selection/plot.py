"""``eval-report.png``: every layer against the optimizer step, the chosen checkpoint marked."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from tinkerlab.diagnosis.run_analysis.plots import thinned
from tinkerlab.evaluation.selection.document import Selection
from tinkerlab.evaluation.selection.layers import TITLES, Evaluation, Kind
from tinkerlab.evaluation.selection.logged import Logged
from tinkerlab.watching import figures

INK, MUTED, GRID, MARK = "#22262e", "#5d6572", "#e4e6ea", "#f3d27a"
# Okabe and Ito's colours, which colour-blind readers tell apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#8a6d3b")
_STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "axes.axisbelow": True,
    "legend.frameon": False,
}


def draw(selection: Selection) -> bytes:
    """A PNG with a row for each layer that there is."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [kind for kind in TITLES if _has(selection, kind)]
    with matplotlib.rc_context(_STYLE):
        figure = Figure(
            figsize=(9, 2.7 * len(rows) + 0.6), layout="constrained", dpi=150, facecolor="white"
        )
        FigureCanvasAgg(figure)
        all_axes = figure.subplots(len(rows), 1, sharex=True, squeeze=False)[:, 0]
        for kind, axes in zip(rows, all_axes, strict=True):
            _row(axes, selection, kind)
        all_axes[-1].set_xlabel("optimizer updates")
        all_axes[-1].xaxis.get_major_locator().set_params(integer=True)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _has(selection: Selection, kind: Kind) -> bool:
    layers = selection.layers
    if kind == "loss":
        return layers.loss is not None or _training(selection) is not None
    return (layers.benchmarks if kind == "benchmarks" else layers.application) is not None


def _training(selection: Selection) -> Any:
    keys = figures.TRAINED_ON[figures.kind_of(selection.run)]
    return selection.run.metrics.curve(keys, training_only=True)


def _row(axes: Any, selection: Selection, kind: Kind) -> None:
    chosen = selection.decision.chosen
    if chosen is not None:
        axes.axvline(chosen.step, color=MARK, linewidth=9, alpha=0.6, zorder=0)
    if kind == "loss":
        _logged(axes, selection)
    found = [evaluation for evaluation in selection.evaluations if evaluation.kind == kind]
    steps = {c.name: c.step for c in selection.checkpoints}
    # Points of several evaluations at one step stand side by side, so that no bar hides another.
    width = 0.008 * max(steps.values())
    for place, evaluation in enumerate(found):
        shift = (place - (len(found) - 1) / 2) * width
        _measured(axes, evaluation, steps, COLOURS[place % len(COLOURS)], shift)
    title = TITLES[kind]
    if chosen is not None and kind == _first_row(selection):
        title += f"   (band: {chosen.name}, the one to take)"
    axes.set_title(title[0].upper() + title[1:])
    handles, names = axes.get_legend_handles_labels()
    if handles:
        axes.legend(handles, names, fontsize=8.5, loc="center left", bbox_to_anchor=(1.005, 0.5))
    axes.margins(x=0.03, y=0.12)


def _first_row(selection: Selection) -> Kind:
    return next(kind for kind in TITLES if _has(selection, kind))


def _logged(axes: Any, selection: Selection) -> None:
    """Training curve and held-out curve; a scale of its own for what is not comparable."""
    training, layer = _training(selection), selection.layers.loss
    held_out = layer if isinstance(layer, Logged) else None
    if training is not None:
        steps, values = thinned(training)
        side = axes
        if held_out is not None and not _same_scale(training.key, held_out.key):
            side = axes.twinx()
            side.grid(False)
            side.set_ylabel(f"training {figures.label(training.key)}")
            side.spines["right"].set_visible(True)
        (line,) = side.plot(steps, values, color="#aab1bb", linewidth=1.2)
        # In the legend of the row's own axes, whichever scale it is drawn on.
        line.set_label("_")
        axes.plot(
            [], [], color="#aab1bb", linewidth=1.2, label=f"training {figures.label(training.key)}"
        )
    if held_out is None:
        return
    colour = COLOURS[0]
    steps, values = thinned(held_out.curve)
    axes.plot(
        steps, values, color=colour, linewidth=1.8, label=f"held out: {held_out.key}", zorder=3
    )
    names = [c for c in selection.checkpoints if c.name in held_out.names]
    axes.plot(
        [c.step for c in names],
        [held_out.score(c.name) for c in names],
        "o",
        color=colour,
        markersize=6,
        label="checkpoints",
        zorder=4,
    )
    axes.set_ylabel(figures.label(held_out.key))


def _same_scale(training: str, held_out: str) -> bool:
    """Whether two metrics are one quantity, so that one axis serves both."""
    return figures.higher_is_better(held_out) == (training.rpartition("/")[2] == "total") and (
        figures.label(training) in ("loss", figures.label(held_out))
    )


def _measured(
    axes: Any, evaluation: Evaluation, steps: dict[str, int], colour: str, shift: float
) -> None:
    names: Sequence[str] = sorted(evaluation.scores, key=lambda name: steps[name])
    means = [evaluation.mean(name) for name in names]
    bounds = [evaluation.interval(name) for name in names]
    axes.errorbar(
        [steps[name] + shift for name in names],
        means,
        # Rounding may put a mean a hair outside: a bar of negative length is an error.
        yerr=[
            [max(m - low, 0.0) for m, (low, _) in zip(means, bounds, strict=True)],
            [max(high - m, 0.0) for m, (_, high) in zip(means, bounds, strict=True)],
        ],
        color=colour,
        linewidth=1.6,
        marker="o",
        markersize=6,
        capsize=3,
        elinewidth=1.2,
        label=f"{_short(evaluation.name)} ({evaluation.items} items)",
    )
    if evaluation.base_mean is not None:
        axes.axhline(
            evaluation.base_mean,
            color=colour,
            linestyle="--",
            linewidth=1.2,
            label="its base model",
        )


def _short(name: str) -> str:
    # matplotlib would read a formula between dollar signs.
    name = name.replace("$", r"\$")
    return name if len(name) <= 32 else f"{name[:31]}…"
