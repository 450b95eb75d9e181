"""What a run of benchmarks would do, before it does it. Asks no service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tinkerlab.evaluation.benchmarks import catalogue, settings
from tinkerlab.evaluation.benchmarks.config import BenchmarksConfig
from tinkerlab.evaluation.offline_run import RunSettings
from tinkerlab.planning import suites

PROMPT_TOKENS = 200  # of one item; most benchmarks lie near it
UNKNOWN_ITEMS = 500
JUDGE_TOKENS = 4096  # a verdict's limit in the cookbook's _arena_hard.py
# LongBench v2: contexts of 8,000 to 2 million words (its paper).
NOT_PRICED = {"longbench": "not estimated: its contexts have 8,000 words and far more"}


def plan(config: BenchmarksConfig, run: RunSettings | None) -> dict[str, Any]:
    """Benchmarks, models, items and a rough price.

    Raises:
        InputError: as the run itself would.
    """
    builders = catalogue.require(config.benchmarks, judge=bool(config.judge_model))
    models = settings.models_of(config, run)
    model = models.get("base", "")  # of a checkpoint alone only the service knows the model
    rows = []
    for name, builder in builders.items():
        entry, own = catalogue.entry(name), config.of(name)
        items, known = _items(entry, own.max_examples)
        max_tokens = settings.for_cookbook(own, model, builder).max_tokens
        rows.append(
            {
                "benchmark": name,
                "items": items,
                "items_known": known,
                "max_tokens": max_tokens,
                "dataset": entry.dataset,
                "needs": list(entry.needs),
                "experimental": entry.experimental,
                "caveats": list(entry.caveats),
                "price": NOT_PRICED.get(name)
                or _price(model, items * len(models), PROMPT_TOKENS, max_tokens),
            }
        )
        if builder.requires_judge:
            # A verdict is on a prompt with the reply in it.
            rows[-1]["judge_price"] = _price(
                str(config.judge_model),
                items * len(models),
                PROMPT_TOKENS + suites.SHORT_REPLY,
                JUDGE_TOKENS,
            )
    return {"models": models, "benchmarks": rows}


def _price(model: str, requests: int, prompt_tokens: int, max_tokens: int) -> str:
    found = suites.price_range(
        model, requests=requests, prompt_tokens=prompt_tokens, max_tokens=max_tokens
    )
    return suites.in_words(found, model or "the checkpoint's model: set base_model")


def lines(document: dict[str, Any]) -> Iterator[str]:
    """The plan for people."""
    for key, model in document["models"].items():
        yield f"{key}: {model}"
    for row in document["benchmarks"]:
        items = row["items"] if row["items_known"] else f"some {row['items']} (size unknown)"
        mark = " (experimental)" if row["experimental"] else ""
        yield (
            f"{row['benchmark']}{mark}: {items} items for each model, from"
            f" {row['dataset'] or 'its own code'}; replies of at most {row['max_tokens']} tokens"
        )
        yield f"  {row['price']}"
        if "judge_price" in row:
            yield f"  the judge: {row['judge_price']}"
        yield from (f"  caution: {caveat}" for caveat in row["caveats"])


def _items(entry: catalogue.Entry, most: int | None) -> tuple[int, bool]:
    """Items that would be asked, and whether that is known."""
    if entry.items is None:
        return (most or UNKNOWN_ITEMS), most is not None
    return min(entry.items, most or entry.items), True
