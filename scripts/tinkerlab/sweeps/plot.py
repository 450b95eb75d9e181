"""One picture of a sweep: the final held-out metric by setting, and its curves by step."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from typing import Any

from tinkerlab.pictures import COLOURS, INK, MUTED, picture
from tinkerlab.sweeps.results import SEED, Result, Results, Setting, told
from tinkerlab.watching.figures import label

# Lines over a number are told apart by their dashes: colours belong to settings.
_DASHES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 4)))
_MAX_LINES = len(_DASHES)
_LABEL_WIDTH = 34  # letters of a setting's name in one line
_LEGEND_WIDTH = 44  # letters; a longer legend would cover the curves
_UNFINISHED = "not finished"


def draw(results: Results) -> bytes:
    """A PNG. At least one run has a curve of the deciding metric."""
    axis = numeric_axis(results)
    rows = len(results.settings)
    height = 4.2 if axis else min(max(4.2, 0.42 * rows + 1.4), 14.0)
    png = io.BytesIO()
    with picture(11, height, png) as figure:
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
        colours = _colours(results)
        if results.settings:
            if axis:
                _over_a_number(left, results, axis, colours)
            else:
                _by_setting(left, results, colours)
        else:
            left.set_axis_off()
            left.text(0.5, 0.5, "no run is complete", ha="center", color=MUTED)
        # The left side names the colours where each setting has a line of its own.
        _curves(right, results, colours, named=axis is not None)
    return png.getvalue()


def numeric_axis(results: Results) -> str | None:
    """The setting to draw the metric over: numbers, three or more, and few lines left."""
    found = []
    for key in results.plan.swept:
        values = {setting.settings.get(key, "") for setting in results.settings}
        if key == SEED or len(values) < 3 or not all(_is_number(value) for value in values):
            continue
        others = {_without(setting, key) for setting in results.settings}
        if len(others) <= _MAX_LINES:
            found.append((-len(values), key))
    return min(found)[1] if found else None


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _without(setting: Setting, key: str) -> str:
    return told({name: value for name, value in setting.settings.items() if name != key})


def _colours(results: Results) -> dict[str, str]:
    """A colour for each setting, best first; beyond the palette they share grey."""
    named = {s.name: c for s, c in zip(results.settings, COLOURS, strict=False)}
    return {s.name: named.get(s.name, "#b9bec7") for s in results.settings}


def _title(results: Results) -> str:
    better = "higher" if results.higher else "lower"
    return f"Final {results.metric} ({better} is better)"


def _over_a_number(axes: Any, results: Results, key: str, colours: dict[str, str]) -> None:
    lines: dict[str, list[Setting]] = {}
    for setting in results.settings:
        lines.setdefault(_without(setting, key), []).append(setting)
    values = [float(setting.settings[key]) for setting in results.settings]
    names = sorted(lines)
    for name, dashes in zip(names, _DASHES, strict=False):
        line = sorted(lines[name], key=lambda setting: float(setting.settings[key]))
        x = [float(setting.settings[key]) for setting in line]
        means = [setting.mean for setting in line]
        axes.plot(x, means, color=MUTED, linewidth=1.3, linestyle=dashes, label=name)
        for at, setting in zip(x, line, strict=True):
            colour, finals = colours[setting.name], list(setting.finals.values())
            if len(finals) > 1:
                axes.plot([at] * len(finals), finals, "o", color=colour, alpha=0.4, markersize=4)
            axes.plot([at], [setting.mean], "o", color=colour, markersize=7)
    best = results.settings[0]
    axes.plot(
        [float(best.settings[key])],
        [best.mean],
        "o",
        markersize=14,
        markerfacecolor="none",
        markeredgecolor=INK,
    )
    if min(values) > 0 and max(values) / min(values) >= 8:
        axes.set_xscale("log", base=2 if _powers_of_two(values) else 10)
    ticks = sorted(set(values))
    if len(ticks) <= 8:
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    axes.set_title(_title(results))
    axes.set_xlabel(key)
    axes.margins(x=0.08, y=0.12)
    if len(names) > 1:
        axes.legend(fontsize=9)


def _powers_of_two(values: Sequence[float]) -> bool:
    return all(value > 0 and math.log2(value).is_integer() for value in values)


def _by_setting(axes: Any, results: Results, colours: dict[str, str]) -> None:
    """A line each, best on top: its runs as dots, their mean as a tick."""
    shown = results.settings
    for place, setting in enumerate(shown):
        finals = list(setting.finals.values())
        colour = colours[setting.name]
        if len(finals) > 1:
            axes.plot(finals, [place] * len(finals), "o", color=colour, alpha=0.45, markersize=6)
            axes.plot(
                [setting.mean], [place], "|", color=colour, markersize=20, markeredgewidth=2.5
            )
        else:
            axes.plot(finals, [place], "o", color=colour, markersize=8)
    names = [
        textwrap.fill(s.name, _LABEL_WIDTH, break_on_hyphens=False, break_long_words=False)
        for s in shown
    ]
    axes.set_yticks(range(len(shown)), names)
    axes.get_yticklabels()[0].set_fontweight("bold")
    axes.get_yticklabels()[0].set_color(INK)
    axes.invert_yaxis()
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.margins(x=0.1)
    axes.set_title(_title(results))


def _curves(axes: Any, results: Results, colours: dict[str, str], *, named: bool) -> None:
    """The metric of every run; runs without a final figure dotted and grey.

    Args:
        named: whether a legend tells which colour is which setting, if it is short enough.
    """
    labelled: set[str] = set()
    ordered = sorted(results.runs, key=lambda run: _place(results, run), reverse=True)
    for run in ordered:
        if run.curve is None:
            continue
        name = _setting_of(results, run)
        unfinished = run.final is None
        entry = _UNFINISHED if unfinished else name
        first = name == (results.settings[0].name if results.settings else None)
        few = len(run.curve) <= 30
        axes.plot(
            run.curve.steps,
            run.curve.values,
            color=MUTED if unfinished else colours[name],
            linestyle=":" if unfinished else "-",
            linewidth=2.4 if first else 1.4,
            alpha=1.0 if first or SEED not in results.plan.swept else 0.7,
            marker="o" if few else "",
            markersize=3.5,
            label=None if entry in labelled else entry,
        )
        labelled.add(entry)
    axes.set_title(f"Held-out {label(str(results.metric))} by step")
    axes.set_xlabel("optimizer steps")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.margins(x=0.02)
    handles, names = axes.get_legend_handles_labels()
    best_first = list(zip(handles, names, strict=True))[::-1]
    if len(results.settings) > len(COLOURS) or max(map(len, names)) > _LEGEND_WIDTH:
        named = False
    kept = [(h, n) for h, n in best_first if named or n == _UNFINISHED]
    if kept:
        axes.legend(*zip(*kept, strict=True), fontsize=8.5)


def _setting_of(results: Results, run: Result) -> str:
    settings = {k: run.member.settings.get(k, "") for k in results.plan.swept if k != SEED}
    return told(settings) or "all seeds"


def _place(results: Results, run: Result) -> int:
    names = [setting.name for setting in results.settings]
    name = _setting_of(results, run)
    return names.index(name) if name in names and run.final is not None else len(names)
