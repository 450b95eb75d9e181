"""Requests that can't be carried out are refused at once, with a line that says why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import engine_reference
import numpy as np
import pytest
from sampling_reference import prompt, request

from tinkerlab.rehearsal.engine.sampling import Sampler
from tinkerlab.rehearsal.errors import UserError


@pytest.fixture(scope="module")
def sampler() -> Iterator[Sampler]:
    sampler = Sampler(engine_reference.base("llama"))
    yield sampler
    sampler.close()


def table(rows: int, value: int) -> np.ndarray:
    return np.full((rows, 2), value, dtype=np.int64)


@pytest.mark.parametrize(
    ("tokens", "options", "words"),
    [
        ([], {}, "prompt is empty"),
        (prompt(5), {"max_tokens": 0}, "max_tokens must be 1 or greater, got 0"),
        (prompt(5), {"num_samples": 0}, "num_samples"),
        (prompt(1000), {"max_tokens": 25}, "1025, over the context window"),
        (prompt(1024), {"max_tokens": None}, "over the context window"),
        ([1, 2, 320], {}, "token 320 at position 2"),
        ([1, -1], {}, "token -1 at position 1"),
        (prompt(5), {"temperature": -0.1}, "temperature"),
        (prompt(5), {"temperature": float("nan")}, "temperature"),
        (prompt(5), {"top_p": 0.0}, "top_p"),
        (prompt(5), {"top_p": 1.1}, "top_p"),
        (prompt(5), {"top_k": -2}, "top_k"),
        (prompt(5), {"prompt_logprobs_last_n": 2}, "requires prompt_logprobs"),
        (prompt(5), {"prompt_logprobs": True, "prompt_logprobs_last_n": 5}, "between 1 and 4"),
        (prompt(5), {"prompt_logprobs": True, "prompt_logprobs_last_n": 0}, "between 1 and 4"),
        (prompt(5), {"topk_prompt_logprobs": -1}, "topk_prompt_logprobs"),
        (prompt(5), {"topk_prompt_logprobs": 321}, "over the vocabulary"),
        (prompt(5), {"topk_sample_logprobs": 321}, "over the vocabulary"),
        (prompt(5), {"prompt_alt_tokens_k": 10**6}, "lower it"),
        (prompt(5), {"target_prompt_logprobs": table(5, 1)}, r"\[4, K\]"),
        (prompt(5), {"target_prompt_logprobs": table(4, 320)}, "outside the vocabulary"),
        (prompt(5), {"target_prompt_logprobs": table(4, -1)}, "names no token"),
    ],
)
def test_refusals(sampler, tokens: list[int], options: dict[str, Any], words: str):
    with pytest.raises(UserError, match=words) as caught:
        sampler.submit(request(tokens, **{"max_tokens": 4} | options))
    assert "\n" not in caught.value.message


def test_the_whole_context_may_be_used(sampler):
    result = sampler.submit(request(prompt(1000), 24, temperature=0.0)).result(60)
    assert len(result.sequences[0].tokens) == 24
    filled = sampler.submit(request(prompt(1010), None, temperature=0.0)).result(60)
    assert len(filled.sequences[0].tokens) == 14
