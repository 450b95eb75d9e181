"""Both models' greedy answers to the first few held-out items.

The first ones, not the best ones: a report that chooses its examples by result shows nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tinkerlab.evaluation.nll import ScoredItem

if TYPE_CHECKING:
    import tinker


def answers(
    base: tinker.SamplingClient,
    trained: tinker.SamplingClient,
    items: Sequence[ScoredItem],
    tokenizer: Any,
    *,
    stop: list[str] | list[int],
    max_tokens: int,
) -> list[dict[str, Any]]:
    """One record per item: index, prompt, reference, and each model's answer and stop reason.

    Args:
        stop: the renderer's stop sequences.
    """
    import tinker

    params = tinker.SamplingParams(max_tokens=max_tokens, temperature=0.0, stop=stop)
    # All are submitted before the first is awaited.
    futures = [
        [
            client.sample(
                prompt=tinker.ModelInput.from_ints(list(item.prompt_tokens)),
                num_samples=1,
                sampling_params=params,
            )
            for client in (base, trained)
        ]
        for item in items
    ]
    found = []
    for item, pair in zip(items, futures, strict=True):
        record: dict[str, Any] = {
            "index": item.index,
            "prompt": item.prompt,
            "reference": _text(tokenizer, _first_answer(item)),
        }
        for name, future in zip(("base", "trained"), pair, strict=True):
            sequence = future.result().sequences[0]
            record[name] = _text(tokenizer, sequence.tokens)
            record[f"{name}_stop"] = sequence.stop_reason
        found.append(record)
    return found


def _first_answer(item: ScoredItem) -> list[int]:
    """The tokens of the first unbroken run of scored tokens: the turn that is asked for."""
    run = []
    for offset, position in enumerate(item.scored):
        if position != item.scored[0] + offset:
            break
        run.append(item.tokens[position])
    return run


def _text(tokenizer: Any, tokens: Sequence[int]) -> str:
    return str(tokenizer.decode(list(tokens), skip_special_tokens=True)).strip()
