"""What is particular to a renderer family: template arguments, and differences that are meant.

A difference from the chat template is only accepted here with its reason, and only where its
condition holds on the tokens at hand, so that "no finding" says something.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

# Longest prefix first: qwen3_5 is not qwen3.
_FAMILIES = (
    "qwen3_5",
    "qwen3_8",
    "qwen3_vl",
    "qwen3",
    "deepseekv4_1",
    "deepseekv3",
    "glm5_3",
    "kimi_k26",
    "kimi_k25",
    "kimi_k2",
    "nemotron3",
    "gpt_oss",
    "llama3",
    "role_colon",
    "tml_v0",
)

# Families that were held against a published chat template when this table was written; for the
# others a difference from the template is a warning, because it may be one that is meant.
HELD_AGAINST_A_TEMPLATE = ("qwen3", "llama3", "role_colon", "deepseekv3")

# Renderers without reasoning that do not say so by their class (disables_thinking): of models that
# were never tuned to reason, or leaving it out of what they write.
NO_REASONING = (
    "qwen3_instruct",
    "qwen3_vl_instruct",
    "llama3",
    "role_colon",
    "deepseekv3",
    "deepseekv3_disable_thinking",
)

# Families whose answers end with the tokenizer's own eos token (Kimi and GLM, for example, stop
# at other tokens than the one that their tokenizer calls eos).
ENDS_WITH_EOS = ("qwen3", "qwen3_5", "qwen3_8", "qwen3_vl", "deepseekv3", "gpt_oss", "llama3")


def family(renderer: str) -> str:
    """The family of a renderer's name; the name itself for one of the user's own."""
    return next((name for name in _FAMILIES if renderer.startswith(name)), renderer)


def template_arguments(renderer: str) -> dict[str, Any]:
    """What the chat template must be told to write what this renderer writes.

    Templates ignore an argument that they don't know, so a wrong name here would compare two
    different modes without a word.
    """
    thinks = "disable_thinking" not in renderer
    group = family(renderer)
    if group == "qwen3" and renderer != "qwen3_instruct":
        return {"enable_thinking": thinks}
    if group in ("qwen3_5", "qwen3_8"):
        preserve = {"preserve_thinking": True} if "preserve" in renderer else {}
        return {"enable_thinking": thinks, **preserve}
    if group == "nemotron3":
        keep = {"truncate_history_thinking": False} if "preserve" in renderer else {}
        return {"enable_thinking": thinks, **keep}
    if group == "deepseekv3":
        return {"thinking": renderer == "deepseekv3_thinking"}
    if group in ("kimi_k25", "kimi_k26"):
        keep = {"preserve_thinking": True} if "preserve" in renderer else {}
        return {"thinking": thinks, **keep}
    return {}


@dataclass(frozen=True)
class Comparison:
    """One pair of token sequences, as text where it helps.

    Attributes:
        ours, theirs: text of what the renderer and the template write.
        has_system: the conversation starts with a system message.
    """

    renderer: str
    sample: str
    ours: str
    theirs: str
    has_system: bool


@dataclass(frozen=True)
class Intended:
    """A difference that is meant.

    Attributes:
        key: stable name.
        reason: why it is meant, a sentence without a full stop.
        families: renderer families that it holds for; empty for any.
        holds: whether the difference at hand is this one, and nothing beside it.
    """

    key: str
    reason: str
    families: tuple[str, ...]
    holds: Callable[[Comparison], bool]


def _only_adds_a_system_message(it: Comparison) -> bool:
    # What the template has more stands after a common start (the first marker) and before an
    # unbroken rest.
    extra = len(it.theirs) - len(it.ours)
    if it.has_system or extra <= 0:
        return False
    start = 0
    while start < len(it.ours) and it.ours[start] == it.theirs[start]:
        start += 1
    return it.theirs[start + extra :] == it.ours[start:] and "system" in it.theirs[: start + extra]


def _equal_without_edges(it: Comparison) -> bool:
    if "trailing whitespace" not in it.sample and "leading newline" not in it.sample:
        return False

    def squeezed(text: str) -> str:
        return "".join(text.split())

    return it.ours != it.theirs and squeezed(it.ours) == squeezed(it.theirs)


INTENDED = (
    Intended(
        "final-newline",
        "the template writes a newline after the last message's end marker; nobody samples it",
        (),
        lambda it: it.theirs == it.ours + "\n",
    ),
    Intended(
        "default-system-message",
        "the template adds a system message of its own where the conversation has none; the "
        "renderer writes only what it is given. Put that message into the data and the prompts if "
        "the model shall be served with it",
        (),
        _only_adds_a_system_message,
    ),
    Intended(
        "template-trims",
        "the template trims whitespace at the ends of a message; the renderer trains on what the "
        "data say",
        ("llama3",),
        _equal_without_edges,
    ),
)


def intended(it: Comparison) -> list[Intended]:
    """The entries that account for the whole difference; empty when something is left over.

    The final newline is looked for first, because it may stand beside one of the others.
    """
    group = family(it.renderer)
    found = []
    newline = INTENDED[0]
    if it.theirs.endswith("\n") and not it.ours.endswith("\n"):
        it = replace(it, theirs=it.theirs[:-1])
        found.append(newline)
    if it.theirs == it.ours:
        return found
    for entry in INTENDED[1:]:
        if (not entry.families or group in entry.families) and entry.holds(it):
            return [*found, entry]
    return []
