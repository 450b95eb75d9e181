"""``eval-report.png``: every layer against the optimizer step, the chosen checkpoint marked."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tinkerlab.diagnosis.run_analysis import names
from tinkerlab.diagnosis.run_analysis.plots import thinned
from tinkerlab.evaluation.selection.document import Selection
from tinkerlab.evaluation.selection.layers import TITLES, Evaluation, Kind
from tinkerlab.evaluation.selection.logged import Logged
from tinkerlab.pictures import COLOURS, MUTED, picture
from tinkerlab.watching import figures

if TYPE_CHECKING:
    from tinkerlab.diagnosis.run_analysis.series import Curve

MARK = "#f3d27a"  # the band behind the chosen checkpoint


def draw(selection: Selection) -> bytes:
    """A PNG: training, then a row for each layer that there is."""
    rows = _rows(selection)
    chosen = selection.decision.chosen
    png = io.BytesIO()
    with picture(9, 2.4 * len(rows) + 0.7, png) as figure:
        all_axes = figure.subplots(len(rows), 1, sharex=True, squeeze=False)[:, 0]
        for (title, paint), axes in zip(rows, all_axes, strict=True):
            if chosen is not None:
                axes.axvline(chosen.step, color=MARK, linewidth=9, alpha=0.6, zorder=0)
            paint(axes)
            axes.set_title(title[0].upper() + title[1:])
            axes.margins(x=0.03, y=0.12)
            _legend(axes)
        if chosen is not None:
            figure.suptitle(
                f"the band marks {_plain(chosen.name)}, the one to take", fontsize=10, color=MUTED
            )
        all_axes[-1].set_xlabel("optimizer updates")
        all_axes[-1].xaxis.get_major_locator().set_params(integer=True)
    return png.getvalue()


def _rows(selection: Selection) -> list[tuple[str, Callable[[Any], None]]]:
    """(title, what draws it) from top to bottom."""
    layers = selection.layers
    training = selection.run.metrics.curve(
        figures.TRAINED_ON[figures.kind_of(selection.run)], training_only=True
    )
    held_out = layers.logged.key if layers.logged else names.HELD_OUT_LOSS[0]
    together = training is not None and _is_one_quantity(training.key, held_out)
    rows: list[tuple[str, Callable[[Any], None]]] = []
    if training is not None and not together:
        rows.append(("training", partial(_training, curve=training)))
    if layers.loss is not None or together:

        def losses(axes: Any) -> None:
            if together and training is not None:
                _training(axes, training)
            if layers.logged is not None:
                _logged(axes, layers.logged, selection)
            _all_measured(axes, selection, "loss")

        higher = layers.loss is not None and layers.loss.higher
        better = "higher" if higher else "lower"
        rows.append((f"{TITLES['loss']} ({better} is better)", losses))
    if layers.benchmarks is not None:
        rows.append(
            (TITLES["benchmarks"], lambda axes: _all_measured(axes, selection, "benchmarks"))
        )
    if layers.application is not None:
        rows.append(
            (TITLES["application"], lambda axes: _all_measured(axes, selection, "application"))
        )
    return rows


def _legend(axes: Any) -> None:
    """Beside the row; the base model's lines, dashed and in the colours of theirs, named once."""
    from matplotlib.lines import Line2D

    handles, labels = axes.get_legend_handles_labels()
    if any(line.get_linestyle() == "--" for line in axes.get_lines()):
        handles.append(Line2D([], [], color=MUTED, linestyle="--", linewidth=1.2))
        labels.append("dashed: base model")
    axes.legend(handles, labels, fontsize=8.5, loc="center left", bbox_to_anchor=(1.005, 0.5))


def _is_one_quantity(training: str, held_out: str) -> bool:
    """Whether one axis serves both: losses of the same data, or rewards."""
    of_training, of_held_out = figures.label(training), figures.label(held_out)
    return of_training == of_held_out or (of_training, of_held_out) == ("loss", "NLL")


def _training(axes: Any, curve: Curve) -> None:
    steps, values = thinned(curve)
    label = f"training {figures.label(curve.key)}"
    axes.plot(steps, values, color="#aab1bb", linewidth=1.2, label=label)


def _logged(axes: Any, layer: Logged, selection: Selection) -> None:
    steps, values = thinned(layer.curve)
    colour = COLOURS[0]
    axes.plot(steps, values, color=colour, linewidth=1.8, label=layer.key, zorder=3)
    shown = [c for c in selection.checkpoints if c.name in layer.names]
    axes.plot(
        [c.step for c in shown],
        [layer.score(c.name) for c in shown],
        "o",
        color=colour,
        markersize=6,
        label="checkpoints",
        zorder=4,
    )


def _all_measured(axes: Any, selection: Selection, kind: Kind) -> None:
    found = [evaluation for evaluation in selection.evaluations if evaluation.kind == kind]
    steps = {c.name: c.step for c in selection.checkpoints}
    # Several evaluations of one step stand side by side, so that no bar hides another.
    width = 0.008 * max(steps.values())
    # Next to a logged curve the first colour is taken.
    colours = COLOURS[1:] if kind == "loss" and selection.layers.logged else COLOURS
    for place, evaluation in enumerate(found):
        shift = (place - (len(found) - 1) / 2) * width
        _measured(axes, evaluation, steps, colours[place % len(colours)], shift)


def _measured(
    axes: Any, evaluation: Evaluation, steps: dict[str, int], colour: str, shift: float
) -> None:
    measured: Sequence[str] = sorted(evaluation.scores, key=lambda name: steps[name])
    means = [evaluation.mean(name) for name in measured]
    bounds = [evaluation.interval(name) for name in measured]
    axes.errorbar(
        [steps[name] + shift for name in measured],
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
        )


def _short(name: str) -> str:
    return _plain(name if len(name) <= 32 else f"{name[:31]}…")


def _plain(name: str) -> str:
    """matplotlib would read what stands between dollar signs as a formula."""
    return name.replace("$", r"\$")
