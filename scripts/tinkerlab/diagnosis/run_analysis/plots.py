"""The page's curves: inline SVG in the colours of the page's own style sheet.

matplotlib paints with stand-in colours, which become CSS variables, so that one picture serves
the light and the dark page. At most ``POINTS`` values a curve are drawn.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from tinkerlab.diagnosis.run_analysis.series import Curve

POINTS = 1500
_INK, _MUTED, _GRID = "#010101", "#020202", "#030303"
_LINES = ("#040404", "#050505", "#060606")
_VARIABLES = {
    _INK: "var(--ink)",
    _MUTED: "var(--muted)",
    _GRID: "var(--grid)",
    _LINES[0]: "var(--line-a)",
    _LINES[1]: "var(--line-b)",
    _LINES[2]: "var(--line-c)",
}


def draw(title: str, curves: Sequence[Curve], marks: Sequence[int] = ()) -> str:
    """Curves over the steps as SVG text.

    Args:
        marks: steps to mark with a dashed line, such as resumes.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": title,
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
        "legend.frameon": False,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(5.6, 3.0), layout="constrained")
        FigureCanvasSVG(figure)
        axes: Any = figure.add_subplot()
        for curve, colour in zip(curves, _LINES, strict=False):
            steps, values = thinned(curve)
            few = len(steps) <= 40
            axes.plot(
                steps, values, color=colour, linewidth=1.6, marker="o" if few else "", markersize=3
            )
        for step in marks:
            axes.axvline(step, color=_MUTED, linestyle="--", linewidth=1)
        axes.set_xlabel("step")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.margins(x=0.02)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _themed(buffer.getvalue())


def thinned(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """The finite points; of many, the lowest and highest of each stretch, so that peaks stay."""
    import numpy as np

    curve = curve.finite()
    if len(curve) <= POINTS:
        return curve.steps, curve.values
    keep: list[int] = []
    for stretch in np.array_split(np.arange(len(curve)), POINTS // 2):
        values = curve.values[stretch]
        keep += sorted({int(stretch[values.argmin()]), int(stretch[values.argmax()])})
    return curve.steps[keep], curve.values[keep]


def _themed(svg: str) -> str:
    """Without prologue, metadata and fixed size; stand-in colours become the page's variables."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<svg ([^>]*?)width="[^"]*"', r'<svg class="figure" role="img" \1', svg, count=1)
    svg = re.sub(r'(<svg [^>]*?)height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    for stand_in, variable in _VARIABLES.items():
        svg = svg.replace(stand_in, variable)
    return svg
