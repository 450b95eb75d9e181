"""What every HTML page of ours shares: how it is filled in, and how its pictures are drawn.

Pages are self-contained. jinja2 escapes every value; only pictures, which are drawn from
numbers, are passed as markup. matplotlib paints with stand-in colours, which are then swapped for
the page's CSS variables: one picture serves the light and the dark page, and its text stays text.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tinkerlab import cli, pictures

# Stand-in colours that occur nowhere else, for the variables that every page defines.
INK, MUTED, GRID = "#010101", "#020202", "#030303"
BASE = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)"}


def fill(
    template: Path,
    values: Mapping[str, Any],
    filters: Mapping[str, Callable[..., str]] | None = None,
) -> str:
    """The page as HTML text, with keys and tokens blanked, whatever they came in with.

    Raises:
        jinja2.UndefinedError: the template names a value that is not there.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters or {})
    return cli.redact(environment.get_template(template.name).render(values))


@contextmanager
def drawing(
    name: str, width: float, height: float, colours: Mapping[str, str]
) -> Iterator[tuple[Any, list[str]]]:
    """An axes object in the house style; the SVG lands in the yielded list at the end.

    Args:
        name: what the picture shows, for readers that don't see it; should be unique on a page.
        width, height: in inches; the page scales it.
        colours: stand-in colour -> CSS variable, besides those of ``BASE``.
    """
    import matplotlib

    settings: Any = {
        **pictures.style(INK, MUTED, GRID),
        "svg.fonttype": "none",
        "svg.hashsalt": name,  # stable element ids, distinct between the page's figures
        "font.size": 11,
        "axes.grid.axis": "y",
    }
    # Figure objects are made directly: pyplot would look for a display and keep state.
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    svg: list[str] = []
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        yield figure.add_subplot(), svg
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg.append(_themed(buffer.getvalue(), name, {**BASE, **colours}))


def _themed(svg: str, name: str, variables: Mapping[str, str]) -> str:
    """Strip the XML prologue and fixed size; swap stand-ins for the page's variables."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(
        r'<svg ([^>]*?)width="[^"]*"',
        lambda found: f'<svg class="figure" role="img" aria-label="{html.escape(name)}" {found[1]}',
        svg,
        count=1,
    )
    svg = re.sub(r'(<svg [^>]*?)height="[^"]*"', r"\1", svg, count=1)
    # Group ids repeat from figure to figure and nothing refers to them.
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    for stand_in, variable in variables.items():
        svg = svg.replace(stand_in, variable)
    return svg
