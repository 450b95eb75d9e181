"""Refuse a sampling request that can't be carried out, before it is queued."""

from __future__ import annotations

import math

from tinkerlab.rehearsal.engine.base import BaseModel
from tinkerlab.rehearsal.engine.types import SamplingRequest
from tinkerlab.rehearsal.errors import UserError

# Cells of one request's tables (positions times k). Ours: the hosted service bounds the cost
# too ("the server bounds len(prompt) * k", SamplingClient.sample), without saying where.
MOST_CELLS = 4_000_000


def check_request(base: BaseModel, request: SamplingRequest) -> None:
    """Check a request against a model.

    Raises:
        UserError: one line that names the field, its value and what is allowed.
    """
    _check_lengths(base, request)
    _check_tokens(base, request)
    _check_choice(request)
    _check_tables(base, request)


def _check_lengths(base: BaseModel, request: SamplingRequest) -> None:
    length = len(request.tokens)
    if length == 0:
        raise UserError("the prompt is empty: it must hold at least one token")
    if request.num_samples < 1:
        raise UserError(f"num_samples must be 1 or greater, got {request.num_samples}")
    if request.max_tokens is not None and request.max_tokens < 1:
        raise UserError(f"max_tokens must be 1 or greater, got {request.max_tokens}")
    wanted = 1 if request.max_tokens is None else request.max_tokens
    if length + wanted > base.context_length:
        raise UserError(
            f"prompt ({length} tokens) + max_tokens ({wanted}) is {length + wanted}, over the"
            f" context window of {base.name} ({base.context_length} tokens):"
            " shorten the prompt or lower max_tokens"
        )


def _check_tokens(base: BaseModel, request: SamplingRequest) -> None:
    for position, token in enumerate(request.tokens):
        if not 0 <= token < base.vocab_size:
            raise UserError(
                f"prompt token {token} at position {position} isn't in the vocabulary of"
                f" {base.name} (0 to {base.vocab_size - 1}): wrong tokenizer?"
            )


def _check_choice(request: SamplingRequest) -> None:
    if not (math.isfinite(request.temperature) and request.temperature >= 0):
        raise UserError(f"temperature must be 0 or greater, got {request.temperature}")
    if not 0 < request.top_p <= 1:
        raise UserError(f"top_p must be over 0 and at most 1, got {request.top_p}")
    if request.top_k < -1:
        raise UserError(f"top_k must be 1 or greater, or -1 for no limit, got {request.top_k}")


def _check_tables(base: BaseModel, request: SamplingRequest) -> None:
    length = len(request.tokens)
    last_n = request.prompt_logprobs_last_n
    if last_n is not None:
        if not request.prompt_logprobs:
            raise UserError("prompt_logprobs_last_n requires prompt_logprobs")
        if not 1 <= last_n <= length - 1:
            raise UserError(
                f"prompt_logprobs_last_n must be between 1 and {length - 1} (the prompt's length"
                f" - 1), got {last_n}"
            )
    longest = request.max_tokens or base.context_length - length
    for name, k, positions in (
        ("topk_prompt_logprobs", request.topk_prompt_logprobs, length),
        ("topk_sample_logprobs", request.topk_sample_logprobs, longest * request.num_samples),
        ("prompt_alt_tokens_k", request.prompt_alt_tokens_k, length),
    ):
        if k < 0:
            raise UserError(f"{name} must be 0 or greater, got {k}")
        if name != "prompt_alt_tokens_k" and k > base.vocab_size:
            raise UserError(f"{name} is {k}, over the vocabulary's {base.vocab_size} tokens")
        if k * positions > MOST_CELLS:
            raise UserError(
                f"{name}: {positions} positions * {k} is over {MOST_CELLS} cells: lower it"
            )
    targets = request.target_prompt_logprobs
    if targets is not None:
        if targets.ndim != 2 or targets.shape[0] != length - 1:
            raise UserError(
                "target_prompt_logprobs must have the shape [len(prompt) - 1, K] ="
                f" [{length - 1}, K], got {list(targets.shape)}"
            )
        if targets.size > MOST_CELLS:
            raise UserError(f"target_prompt_logprobs has over {MOST_CELLS} cells")
        if not (targets >= 0).any():
            raise UserError("target_prompt_logprobs names no token id")
        if int(targets.max()) >= base.vocab_size or int(targets.min()) < -1:
            raise UserError(
                "target_prompt_logprobs holds an id outside the vocabulary of"
                f" {base.name} (0 to {base.vocab_size - 1}, or -1 for none)"
            )
