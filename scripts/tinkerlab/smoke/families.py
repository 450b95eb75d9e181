"""The four families of models, and which small model stands for each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tinkerlab.errors import InputError

METHODS = ("sft", "grpo")


@dataclass(frozen=True)
class Family:
    """A kind of model whose prompts are made differently.

    Attributes:
        candidates: hosted models, the preferred first: small, cheap by ``templates/prices.yaml``,
            and with a tokenizer that can be had without asking its owner. A test compares them
            with tinker-cookbook's ``model_info``.
        stand_in: what a rehearsal serves under such a name.
    """

    name: str
    candidates: tuple[str, ...]
    stand_in: str


FAMILIES = {
    family.name: family
    for family in (
        Family("base", ("Qwen/Qwen3-8B-Base", "Qwen/Qwen3-30B-A3B-Base"), "tiny:llama"),
        Family(
            "instruction",
            ("Qwen/Qwen3-4B-Instruct-2507", "Qwen/Qwen3-30B-A3B-Instruct-2507"),
            "tiny:qwen3",
        ),
        Family("hybrid", ("Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B"), "tiny:qwen3_moe"),
        Family("reasoning", ("openai/gpt-oss-20b", "openai/gpt-oss-120b"), "tiny:gpt_oss"),
    )
}


def parse_models(pairs: Sequence[str]) -> dict[str, str]:
    """``FAMILY=NAME`` words as a mapping.

    Raises:
        InputError: no such pair, no such family, or a family named twice.
    """
    models: dict[str, str] = {}
    for pair in pairs:
        family, _, name = (part.strip() for part in pair.partition("="))
        if family not in FAMILIES or not name:
            raise InputError(
                f"--models {pair}: write FAMILY=NAME, with a family of {', '.join(FAMILIES)}"
            )
        if family in models:
            raise InputError(f"--models names {family} twice; keep one")
        models[family] = name
    return models


def choose(
    families: Sequence[str], named: Mapping[str, str], served: Collection[str] = ()
) -> dict[str, str]:
    """The model of each family: the named one, else the first candidate that is served.

    Args:
        served: what the service trains; empty where that is not known. Where none of the
            candidates is in it, the first is taken, and its cells say what the service says.
    """
    chosen = {}
    for family in families:
        candidates = FAMILIES[family].candidates
        default = next((name for name in candidates if name in served), candidates[0])
        chosen[family] = named.get(family, default)
    return chosen


def served_models() -> set[str]:
    """What the service that the environment names can train; empty when it does not say."""
    import tinker

    from tinkerlab import service

    try:
        answer = service.rest_client().get_server_capabilities().result(timeout=20)
    except (tinker.TinkerError, TimeoutError, OSError):
        return set()
    return {str(model.model_name) for model in answer.supported_models if model.trainable}
