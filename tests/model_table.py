"""The table of models in ``skills/research/references/models.md``, from the installed package.

python tests/model_table.py      # prints it
"""

from __future__ import annotations

import re
from typing import Any

HEADER = (
    "| model | type | build | rate of `get_lr` | LoRA at rank 32 |"
    " renderers, the recommended one first |"
)


def attributes() -> dict[str, Any]:
    """Full model name -> what tinker-cookbook's ``model_info`` knows of it."""
    from tinker_cookbook import model_info

    makers = [name for name in vars(model_info) if re.fullmatch(r"get_\w+_info", name)]
    return {
        f"{found.organization}/{name}": found
        for maker in makers
        for name, found in getattr(model_info, maker)().items()
    }


def kind(found: Any) -> str:
    """base, instruct, thinking, or hybrid (thinking can be switched off by the renderer)."""
    renderers = found.recommended_renderers
    if not found.is_chat:
        word = "base"
    elif any(name.endswith("disable_thinking") for name in renderers) or renderers[:2] == (
        "deepseekv3",
        "deepseekv3_thinking",
    ):
        word = "hybrid"
    elif any(re.search(r"reasoning|thinking", name) for name in renderers) or renderers[
        0
    ].startswith(("gpt_oss", "kimi_k2", "nemotron", "tml")):
        word = "thinking"
    else:
        word = "instruct"
    senses = [name for name, has in (("vision", found.is_vl), ("audio", found.is_audio_in)) if has]
    return ", ".join([word, *senses])


def build(found: Any) -> str:
    """Total and active parameters of a mixture of experts, or the size of a dense model."""
    size = found.size_str
    active = re.search(r"-A(\d+(?:\.\d+)?B)", size)
    if active:
        return f"{size.split('-A')[0]} experts, {active.group(1)} active"
    return f"{size}" if size else "not stated"


def rate(name: str) -> str:
    """The cookbook's learning rate for supervised training; none outside Qwen and Llama."""
    from tinker_cookbook.exceptions import ConfigurationError
    from tinker_cookbook.hyperparam_utils import get_lr

    try:
        return f"{get_lr(name):.2e}"
    except (NotImplementedError, ConfigurationError):
        return "none"


def lora_size(name: str) -> str:
    """Parameters of an adapter of rank 32 on all parts."""
    from tinker_cookbook.hyperparam_utils import get_lora_param_count

    return f"{get_lora_param_count(name, 32) / 1e6:,.0f}M"


def rows() -> list[str]:
    """One row a model, by name."""
    return [
        f"| `{name}` | {kind(found)} | {build(found)} | {rate(name)} | {lora_size(name)} |"
        f" {', '.join(f'`{r}`' for r in found.recommended_renderers)} |"
        for name, found in sorted(attributes().items(), key=lambda item: item[0].lower())
    ]


def table() -> str:
    return "\n".join([HEADER, "| --- | --- | --- | --- | --- | --- |", *rows()])


if __name__ == "__main__":
    print(table())
