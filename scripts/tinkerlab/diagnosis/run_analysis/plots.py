"""The page's curves. At most ``POINTS`` values a curve are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinkerlab.pages import MUTED, drawing

if TYPE_CHECKING:
    import numpy as np

    from tinkerlab.diagnosis.run_analysis.series import Curve

POINTS = 1500
# Stand-in colour -> CSS variable of page.html.j2, besides those of tinkerlab.pages.
_LINES = ("#040404", "#050505", "#060606")
_COLOURS: dict[str, str] = dict(
    zip(_LINES, ("var(--line-a)", "var(--line-b)", "var(--line-c)"), strict=True)
)


def draw(title: str, curves: Sequence[Curve], marks: Sequence[int] = ()) -> str:
    """Curves over the steps as SVG text.

    Args:
        marks: steps to mark with a dashed line, such as resumes.
    """
    with drawing(title, 5.6, 3.0, _COLOURS) as (axes, svg):
        for curve, colour in zip(curves, _LINES, strict=False):
            steps, values = thinned(curve)
            few = len(steps) <= 40
            axes.plot(
                steps, values, color=colour, linewidth=1.6, marker="o" if few else "", markersize=3
            )
        for step in marks:
            axes.axvline(step, color=MUTED, linestyle="--", linewidth=1)
        axes.set_xlabel("step")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.margins(x=0.02)
    return svg[0]


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
