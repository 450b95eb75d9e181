"""The report's pictures: inline SVG whose colours and font come from the page.

matplotlib paints with stand-in colours, which are then swapped for the page's CSS variables:
one picture serves the light and the dark page, and its text stays text.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

# Stand-in colour -> CSS variable of page.html.j2. The stand-ins occur nowhere else.
_INK, _MUTED, _GRID = "#010101", "#020202", "#030303"
_TRAIN, _HELD_OUT = "#040404", "#050505"
_BETTER, _WORSE = "#060606", "#070707"
_VARIABLES = {
    _INK: "var(--ink)",
    _MUTED: "var(--muted)",
    _GRID: "var(--grid)",
    _TRAIN: "var(--train)",
    _HELD_OUT: "var(--held-out)",
    _BETTER: "var(--better)",
    _WORSE: "var(--worse)",
}
_SMOOTH_FROM = 60  # steps from which a moving average is drawn over the raw training loss


@contextmanager
def _axes(name: str, width: float, height: float) -> Iterator[tuple[Any, list[str]]]:
    """An axes object in the house style; the SVG lands in the yielded list at the end."""
    import matplotlib

    style: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,  # stable element ids, distinct between the page's figures
        "font.family": "sans-serif",
        "font.size": 11,
        "text.color": _INK,
        "axes.labelcolor": _MUTED,
        "axes.edgecolor": _GRID,
        "xtick.color": _MUTED,
        "ytick.color": _MUTED,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "grid.color": _GRID,
        "axes.axisbelow": True,
    }
    # Figure objects are made directly: pyplot would look for a display and keep state.
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    svg: list[str] = []
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        yield figure.add_subplot(), svg
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg.append(_themed(buffer.getvalue(), name))


def _themed(svg: str, name: str) -> str:
    """Strip the XML prologue and fixed size; swap stand-ins for the page's variables."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(
        r'<svg ([^>]*?)width="[^"]*"',
        rf'<svg class="figure" role="img" aria-label="{name}" \1',
        svg,
    )
    svg = re.sub(r'(<svg [^>]*?)height="[^"]*"', r"\1", svg, count=1)
    # Group ids repeat from figure to figure and nothing refers to them.
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    for stand_in, variable in _VARIABLES.items():
        svg = svg.replace(stand_in, variable)
    return svg


def training_curves(
    train: Sequence[tuple[int, float]], held_out: Sequence[tuple[int, float]], quantity: str
) -> str | None:
    """``quantity`` by step, and that of the held-out items; None without points."""
    if not train and not held_out:
        return None
    import numpy as np

    with _axes(f"{quantity} by training step", 5.6, 3.4) as (axes, svg):
        if train:
            steps, values = zip(*train, strict=True)
            long = len(steps) >= _SMOOTH_FROM
            axes.plot(
                steps, values, color=_TRAIN, linewidth=1 if long else 1.8, alpha=0.35 if long else 1
            )
            if long:
                span = max(5, len(steps) // 20)
                mean = np.convolve(values, np.ones(span) / span, mode="valid")
                axes.plot(steps[span - 1 :], mean, color=_TRAIN, linewidth=2)
        if held_out:
            steps, values = zip(*held_out, strict=True)
            axes.plot(steps, values, color=_HELD_OUT, linewidth=2, marker="o", markersize=5)
        axes.set_xlabel("optimizer steps")
        axes.set_ylabel(quantity)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.margins(x=0.02)
    return svg[0]


def item_changes(changes: Sequence[float], *, lower_is_better: bool, unit: str) -> str | None:
    """Every item's trained-minus-base score, sorted: one bar each, no binning."""
    if not changes:
        return None
    ordered = sorted(changes, reverse=not lower_is_better)
    with _axes("Change of every held-out item, sorted", 5.6, 3.4) as (axes, svg):
        for wanted, colour in ((True, _BETTER), (False, _WORSE)):
            places = [
                i for i, v in enumerate(ordered) if v and ((v < 0) == lower_is_better) == wanted
            ]
            # Thin gaps between few bars; none between many, where they would only shimmer.
            axes.bar(
                places,
                [ordered[i] for i in places],
                width=0.8 if len(ordered) <= 100 else 1.0,
                color=colour,
                linewidth=0,
            )
        axes.axhline(0, color=_INK, linewidth=1)
        axes.set_ylabel(unit)
        axes.set_xlabel(f"the {len(ordered)} held-out items, sorted by change")
        axes.set_xticks([])
        axes.margins(x=0.01)
    return svg[0]


def interval(mean: float, low: float, high: float, *, lower_is_better: bool) -> str:
    """The mean difference with its interval against zero."""
    better = (mean < 0) == lower_is_better
    sure = not low <= 0 <= high
    colour = (_BETTER if better else _WORSE) if sure else _MUTED
    with _axes("Mean difference and its 95 % interval against zero", 5.2, 1.15) as (axes, svg):
        axes.grid(False)
        axes.axvline(0, color=_INK, linewidth=1)
        axes.plot([low, high], [0, 0], color=colour, linewidth=3, solid_capstyle="round")
        axes.plot([mean], [0], color=colour, marker="o", markersize=10)
        reach = max(abs(low), abs(high)) * 1.15 or 1.0
        if low > 0 or high < 0:
            # Zero near one edge: the distance from it is what the eye should read.
            axes.set_xlim((-reach, reach * 0.12) if high < 0 else (-reach * 0.12, reach))
        else:
            axes.set_xlim(-reach, reach)
        axes.set_ylim(-1, 1)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.tick_params(labelsize=10)
    return svg[0]
