"""What a run of benchmarks would do, before it does it. Asks no service."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tinkerlab.evaluation.benchmarks import catalogue, running
from tinkerlab.evaluation.benchmarks.config import BenchmarksConfig
from tinkerlab.evaluation.offline_run import RunSettings
from tinkerlab.planning import suites

PROMPT_TOKENS = 200  # of one item, without few-shot examples; most benchmarks lie near it
UNKNOWN_ITEMS = 500


def plan(config: BenchmarksConfig, run: RunSettings | None) -> dict[str, Any]:
    """Benchmarks, models, items and a rough price.

    Raises:
        InputError: as the run itself would.
    """
    builders = catalogue.require(config.benchmarks, judge=bool(config.judge_model))
    models = running.models_of(config, run)
    base = models.get("base")
    entries = [entry for entry in catalogue.entries() if entry.name in builders]
    max_tokens = config.max_tokens or _recommended(base)
    rows = []
    for entry in entries:
        items, known = _items(entry, config.max_examples)
        found = suites.price_range(
            base or "",
            requests=items * len(models),
            prompt_tokens=PROMPT_TOKENS,
            max_tokens=max_tokens,
        )
        rows.append(
            {
                "benchmark": entry.name,
                "items": items,
                "items_known": known,
                "dataset": entry.dataset,
                "needs": list(entry.needs),
                "experimental": entry.experimental,
                "price": suites.in_words(found, base or "the model"),
            }
        )
    return {"models": models, "max_tokens": max_tokens, "benchmarks": rows}


def lines(document: dict[str, Any]) -> Iterator[str]:
    """The plan for people."""
    for key, model in document["models"].items():
        yield f"{key}: {model}"
    yield f"replies of at most {document['max_tokens']} tokens"
    for row in document["benchmarks"]:
        items = row["items"] if row["items_known"] else f"some {row['items']} (size unknown)"
        mark = " (experimental)" if row["experimental"] else ""
        yield f"{row['benchmark']}{mark}: {items} items for each model, from {row['dataset']}"
        yield f"  {row['price']}"


def _items(entry: catalogue.Entry, most: int | None) -> tuple[int, bool]:
    """Items of a benchmark, as its own description counts them, and whether it does."""
    found = re.search(r"([\d,]*\d)(K?)\+? (?:[\w-]+ )*(?:questions|examples|problems)", entry.about)
    if not found:
        return (most or UNKNOWN_ITEMS), most is not None
    size = int(found.group(1).replace(",", "")) * (1000 if found.group(2) else 1)
    return (min(size, most) if most else size), True


def _recommended(model: str | None) -> int:
    from tinker_cookbook.eval.benchmarks import BenchmarkConfig

    try:
        return BenchmarkConfig.for_model(model or "").max_tokens
    except ValueError:
        return running.MAX_TOKENS
