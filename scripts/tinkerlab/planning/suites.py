"""What an evaluation will roughly cost: a range, since nobody knows how long replies will be."""

from __future__ import annotations

from dataclasses import dataclass

from tinkerlab.errors import InputError
from tinkerlab.planning import cost
from tinkerlab.planning.prices import read_prices

SHORT_REPLY = 300  # tokens: an answer with a few lines of reasoning


@dataclass(frozen=True)
class PriceRange:
    """USD of one evaluation, from short replies to replies that all use ``max_tokens``.

    Attributes:
        read: when the prices were read; ``source`` where they can be compared.
    """

    low_usd: float
    high_usd: float
    read: str
    source: str


def price_range(
    model: str, *, requests: int, prompt_tokens: int, max_tokens: int
) -> PriceRange | None:
    """The price of ``requests`` replies; None where the table has no price for the model."""
    table = read_prices()
    try:
        price = table.of(model)
    except InputError:
        return None

    def total(reply: int) -> float:
        usage = cost.Usage(steps=0, prefill=requests * prompt_tokens, sample=requests * reply)
        return cost.estimate(model, usage, table).total_usd

    low = total(min(SHORT_REPLY, max_tokens))
    return PriceRange(low, total(max_tokens), price.read, table.source)


def in_words(found: PriceRange | None, model: str) -> str:
    """The range as one line, with its date."""
    if found is None:
        return f"price unknown: templates/prices.yaml has none for {model}"
    return (
        f"about ${found.low_usd:,.2f} if replies are short, at most ${found.high_usd:,.2f} if each"
        f" uses max_tokens (prices read {found.read}; compare with {found.source})"
    )
