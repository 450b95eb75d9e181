"""The report's pictures, drawn from numbers alone."""

from __future__ import annotations

from collections.abc import Sequence

from tinkerlab.pages import INK, MUTED, drawing

# Stand-in colour -> CSS variable of page.html.j2, besides those of tinkerlab.pages.
_TRAIN, _HELD_OUT = "#040404", "#050505"
_BETTER, _WORSE = "#060606", "#070707"
_COLOURS = {
    _TRAIN: "var(--train)",
    _HELD_OUT: "var(--held-out)",
    _BETTER: "var(--better)",
    _WORSE: "var(--worse)",
}
_SMOOTH_FROM = 60  # steps from which a moving average is drawn over the raw training loss


def training_curves(
    train: Sequence[tuple[int, float]], held_out: Sequence[tuple[int, float]], quantity: str
) -> str | None:
    """``quantity`` by step, and that of the held-out items; None without points."""
    if not train and not held_out:
        return None
    import numpy as np

    with drawing(f"{quantity} by training step", 5.6, 3.4, _COLOURS) as (axes, svg):
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
    with drawing("Change of every held-out item, sorted", 5.6, 3.4, _COLOURS) as (axes, svg):
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
        axes.axhline(0, color=INK, linewidth=1)
        axes.set_ylabel(unit)
        axes.set_xlabel(f"the {len(ordered)} held-out items, sorted by change")
        axes.set_xticks([])
        axes.margins(x=0.01)
    return svg[0]


def interval(mean: float, low: float, high: float, *, lower_is_better: bool) -> str:
    """The mean difference with its interval against zero."""
    better = (mean < 0) == lower_is_better
    sure = not low <= 0 <= high
    colour = (_BETTER if better else _WORSE) if sure else MUTED
    with drawing("Mean difference and its 95 % interval against zero", 5.2, 1.15, _COLOURS) as (
        axes,
        svg,
    ):
        axes.grid(False)
        axes.axvline(0, color=INK, linewidth=1)
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
