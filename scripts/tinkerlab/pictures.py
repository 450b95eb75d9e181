"""The PNG pictures of ours: their colours, their style, and how one is made.

The pictures inside HTML pages are drawn by ``tinkerlab.pages``, for light and dark pages.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

INK, MUTED, GRID = "#22262e", "#5d6572", "#e4e6ea"
# The palette of Okabe and Ito (2008), which colour-blind readers tell apart, without its palest.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a6d3b", "#6b6b6b")
_TITLES: dict[str, Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "legend.frameon": False,
}


def style(ink: str, muted: str, grid: str) -> dict[str, Any]:
    """matplotlib's settings that every drawing of ours has, in these colours."""
    return {
        "font.family": "sans-serif",
        "text.color": ink,
        "axes.labelcolor": muted,
        "axes.edgecolor": grid,
        "xtick.color": muted,
        "ytick.color": muted,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": grid,
        "axes.axisbelow": True,
    }


@contextmanager
def picture(width: float, height: float, png: io.BytesIO) -> Iterator[Any]:
    """An empty figure of so many inches in the house style; drawn into ``png`` at the end."""
    import matplotlib

    # Figure objects are made directly: pyplot would look for a display and keep state.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings: Any = {**style(INK, MUTED, GRID), **_TITLES}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(width, height), layout="constrained", dpi=150, facecolor="white")
        FigureCanvasAgg(figure)
        yield figure
        figure.savefig(png, format="png", metadata={"Software": None})
