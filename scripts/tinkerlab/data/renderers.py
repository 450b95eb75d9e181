"""Choose the renderer: the code that turns messages into a model's own prompt format.

For models that tinker-cookbook knows, its recommendation. For others, the cookbook renderer
whose tokens equal those of the tokenizer's chat template on sample conversations; failing
that ``role_colon``, the plain format, with a warning.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass, field, replace
from typing import Any

from tinkerlab.errors import InputError

FALLBACK = "role_colon"

# Tried in this order; of several that match equally well the first wins. Those for images and
# the low/high variants, which differ from their siblings only in a system sentence, are left
# to explicit choice.
CANDIDATES = (
    "qwen3_instruct",
    "llama3",
    "qwen3",
    "qwen3_disable_thinking",
    "deepseekv3",
    "deepseekv3_thinking",
    "gpt_oss_no_sysprompt",
    "gpt_oss_medium_reasoning",
    "qwen3_5",
    "qwen3_5_disable_thinking",
    "qwen3_8_xhigh_reasoning",
    "qwen3_8_disable_thinking",
    "kimi_k2",
    "kimi_k25",
    "kimi_k25_disable_thinking",
    "nemotron3",
    "nemotron3_disable_thinking",
    "nemotron3_ultra",
    "nemotron3_ultra_disable_thinking",
    "glm5_3_max_reasoning",
    "deepseekv4_1",
    "deepseekv4_1_disable_thinking",
)

_SYSTEM = {"role": "system", "content": "You answer in one sentence."}
_TURNS = [
    {"role": "user", "content": "What is 15 + 27?"},
    {"role": "assistant", "content": "It is 42."},
    {"role": "user", "content": "And twice that?\nShow the steps."},
    {"role": "assistant", "content": "Twice 42 is 84."},
]
# name of the sample: conversation up to where the model answers, or to the end of its answer.
_PROMPTS = {
    "a system message and one question": [_SYSTEM, *_TURNS[:1]],
    "a system message and two questions": [_SYSTEM, *_TURNS[:3]],
    "one question": _TURNS[:1],
    "two questions": _TURNS[:3],
}
_EXAMPLES = {
    "an answered conversation with a system message": [_SYSTEM, *_TURNS],
    "an answered conversation": _TURNS,
}
# Without these a renderer isn't the template's at all; the others may differ by a default
# system prompt that the template adds, which is said in the reason.
_ESSENTIAL = ("a system message and one question", "a system message and two questions")


@dataclass(frozen=True)
class ResolvedRenderer:
    """The chosen renderer.

    Attributes:
        renderer: a ``tinker_cookbook.renderers.Renderer``.
        name: its name in the cookbook.
        reason: why this one, a sentence without a full stop.
        warnings: what may hurt the training, in sentences.
        template_adds_system: the tokenizer's template writes a system message of its own where
            a conversation has none, which the renderer doesn't.
    """

    renderer: Any
    name: str
    reason: str
    warnings: list[str] = field(default_factory=list)
    template_adds_system: bool = False


def resolve_renderer(model_name: str, tokenizer: Any, wanted: str = "auto") -> ResolvedRenderer:
    """Choose a renderer for ``model_name`` and try it on a sample conversation.

    Args:
        model_name: as the service or the rehearsal knows it; only looked up, never loaded.
        tokenizer: the tokenizer that the training will use.
        wanted: a cookbook renderer's name, or ``auto``.

    Raises:
        InputError: the wanted renderer doesn't exist, or can't work with this tokenizer.
    """
    quiet_cookbook()
    recommended = recommended_names(model_name)
    if wanted != "auto":
        return _explicit(model_name, tokenizer, wanted, recommended)
    concerns: list[str] = []
    if recommended:
        renderer, fault = try_renderer(recommended[0], tokenizer, model_name)
        if renderer is not None:
            reason = f"tinker-cookbook recommends it for {model_name}"
            return ResolvedRenderer(renderer, recommended[0], reason)
        concerns.append(
            f"tinker-cookbook recommends {recommended[0]} for {model_name}, but this tokenizer "
            f"can't be used with it ({fault}); is it this model's tokenizer?"
        )
    found = _like_the_template(model_name, tokenizer)
    if found is not None:
        return replace(found, warnings=[*concerns, *found.warnings])
    renderer, fault = try_renderer(FALLBACK, tokenizer, model_name)
    if renderer is None:
        raise InputError(f"no renderer works with the tokenizer of {model_name}: {fault}")
    if getattr(tokenizer, "chat_template", None):
        reason = "no cookbook renderer gives the tokens of this tokenizer's chat template"
        concerns.append(
            f"{reason}; {FALLBACK} ('User: ...') teaches a format that the model wasn't tuned "
            "for, and servers that use the template won't match it: name one with renderer=..."
        )
    else:
        reason = "the tokenizer has no chat template, as is usual for base models"
        concerns.append(f"{reason}: prompts must be written as 'User: ...' when sampling, too")
    return ResolvedRenderer(renderer, FALLBACK, reason, concerns)


def recommended_names(model_name: str) -> list[str]:
    """The cookbook's renderers for a model, best first; empty for a model it doesn't know."""
    from tinker_cookbook.exceptions import ConfigurationError
    from tinker_cookbook.model_info import get_recommended_renderer_names

    try:
        return get_recommended_renderer_names(model_name)
    except (ConfigurationError, KeyError, ValueError):
        return []


def try_renderer(name: str, tokenizer: Any, model_name: str) -> tuple[Any, str]:
    """(renderer, "") if it can render a conversation with this tokenizer, else (None, why)."""
    from tinker_cookbook.renderers import get_renderer

    prompt: list[Any] = list(_PROMPTS["a system message and two questions"])
    example: list[Any] = list(_EXAMPLES["an answered conversation"])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the sample, which isn't the user's
            renderer = get_renderer(name, tokenizer, model_name=model_name)
            renderer.build_generation_prompt(prompt)
            renderer.build_supervised_example(example)
            renderer.get_stop_sequences()
    except Exception as error:  # renderers assert, index and encode; anything may come
        return None, " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return renderer, ""


def template_matches(renderer: Any, tokenizer: Any) -> dict[str, bool]:
    """Which samples the renderer and the chat template turn into the same tokens.

    A newline that only the template writes after the last message is not counted: the model
    never has to produce it.
    """
    matches = {}
    for name, messages in _PROMPTS.items():
        ours = _ours(lambda m=messages: renderer.build_generation_prompt(list(m)))
        matches[name] = ours is not None and ours == _templated(tokenizer, messages, True)
    newline = tokenizer.encode("\n", add_special_tokens=False)
    for name, messages in _EXAMPLES.items():
        ours = _ours(lambda m=messages: renderer.build_supervised_example(list(m))[0])
        theirs = _templated(tokenizer, messages, False)
        matches[name] = ours is not None and theirs in (ours, [*ours, *newline])
    return matches


def quiet_cookbook() -> None:
    """Silence a warning that the cookbook repeats for every row it renders.

    It says that a renderer may write turns differently once they are history; ``check_dataset``
    says for which rows that is so, by comparing tokens.
    """
    logger = logging.getLogger("tinker_cookbook.renderers.base")
    if _not_about_history not in logger.filters:
        logger.addFilter(_not_about_history)


def _not_about_history(record: logging.LogRecord) -> bool:
    return "does not satisfy the extension property" not in record.getMessage()


def _explicit(
    model_name: str, tokenizer: Any, wanted: str, recommended: list[str]
) -> ResolvedRenderer:
    renderer, fault = try_renderer(wanted, tokenizer, model_name)
    if renderer is None:
        hint = f"for {model_name}: {', '.join(recommended)}" if recommended else "or use auto"
        raise InputError(f"renderer {wanted!r} can't be used with this tokenizer ({fault}); {hint}")
    concerns: list[str] = []
    if recommended and wanted not in recommended:
        concerns.append(
            f"renderer {wanted} isn't one of those that tinker-cookbook recommends for "
            f"{model_name} ({', '.join(recommended)})"
        )
    return ResolvedRenderer(renderer, wanted, "named in the settings", concerns)


def _like_the_template(model_name: str, tokenizer: Any) -> ResolvedRenderer | None:
    if not getattr(tokenizer, "chat_template", None):
        return None
    best: tuple[int, str, Any, dict[str, bool]] | None = None
    for name in CANDIDATES:
        renderer, _ = try_renderer(name, tokenizer, model_name)
        if renderer is None:
            continue
        matches = template_matches(renderer, tokenizer)
        score = sum(matches.values())
        if all(matches[sample] for sample in _ESSENTIAL) and (best is None or score > best[0]):
            best = (score, name, renderer, matches)
    if best is None:
        return None
    score, name, renderer, matches = best
    reason = f"its tokens equal the tokenizer's chat template on {score} of {len(matches)} samples"
    with_system = [sample for sample in matches if "system" in sample]
    adds_system = all(matches[sample] for sample in with_system) and not matches["one question"]
    missed = [sample for sample, equal in matches.items() if not equal]
    if adds_system:
        reason += " (all those with a system message; without one the template adds its own)"
    elif missed:
        reason += f" (not on: {'; '.join(missed)})"
    return ResolvedRenderer(renderer, name, reason, template_adds_system=adds_system)


def _ours(build: Any) -> list[int] | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return build().to_ints()
    except Exception:  # a renderer that can't render the sample doesn't match it
        return None


def _templated(tokenizer: Any, messages: list[dict[str, str]], generate: bool) -> list[int] | None:
    # Rendered to text first: transformers 5 returns a mapping from tokenize=True, whose list()
    # is its keys.
    try:
        text = tokenizer.apply_chat_template(
            messages, add_generation_prompt=generate, tokenize=False
        )
        return tokenizer.encode(text, add_special_tokens=False)
    except Exception:  # templates raise what they like, for example on a system message
        return None
