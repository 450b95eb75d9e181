"""From the documents of other tools to the rows and sentences that the page shows.

Each function is lenient: what a document lacks is left out, since the page must also show
folders of older versions and of other tools.
"""

from __future__ import annotations

import shlex
from typing import Any

# Config keys worth a line, in the order in which a run meets them; the rest is folded away.
MAIN_SETTINGS = (
    "base_model",
    "renderer",
    "train_file",
    "val_file",
    "val_fraction",
    "train_on_what",
    "max_seq_len",
    "lora_rank",
    "train_attn",
    "train_mlp",
    "train_unembed",
    "learning_rate",
    "lr_schedule",
    "train_batch_size",
    "num_epochs",
    "total_steps",
    "weight_decay",
    "seed",
)
# What vLLM's --max-lora-rank accepts (vllm/config/lora.py, MaxLoRARanks).
VLLM_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
EXAMPLES_SHOWN = 5

Row = tuple[str, Any]


def settings(config: dict[str, Any]) -> tuple[list[Row], list[Row]]:
    """The main settings of a run and the others, with what "auto" and the like came to."""
    merged = {k: v for k, v in config.items() if k not in {"resolved", "versions"}}
    merged |= config.get("resolved") or {}
    main = [(name, merged[name]) for name in MAIN_SETTINGS if merged.get(name) is not None]
    return main, [(name, value) for name, value in merged.items() if name not in MAIN_SETTINGS]


def data_table(report: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Column names and rows of the data statistics: a column for each side."""
    sides = report.get("statistics")
    if not isinstance(sides, dict):
        return [], []
    sides = {name: side for name, side in sides.items() if isinstance(side, dict)}
    names = {"train": "training", "val": "held out"}
    rows = []
    for label, *path in (
        ("rows", "rows"),
        ("tokens", "tokens"),
        ("trained tokens", "trained_tokens"),
        ("tokens per row, median", "length", "p50"),
        ("tokens per row, longest", "length", "max"),
        ("rows cut at the length limit", "truncated_rows"),
        ("rows of several turns", "multi_turn_rows"),
    ):
        values = [_dig(side, path) for side in sides.values()]
        if any(value is not None for value in values):
            rows.append([label, *values])
    return [names.get(name, str(name)) for name in sides], rows


def data_warnings(report: dict[str, Any]) -> list[str]:
    """The data check's warnings, a line each."""
    found = []
    for warning in report.get("warnings") or []:
        found.append(str(warning.get("message") if isinstance(warning, dict) else warning))
    return found


def export(document: dict[str, Any]) -> dict[str, Any] | None:
    """Verdict, sentence, comparison rows and notes of export_model.py's report.

    Takes its export.json as well as what its ``--json`` prints; None without either.
    """
    result = document.get("result", document)
    if not isinstance(result, dict) or "good" not in result:
        return None
    behaviour = result.get("behaviour") or {}
    weights = result.get("weights") or {}
    rows = []
    for label, *path in (
        ("what the adapter changes", "effect"),
        ("noise: base model, service against transformers", "engine_noise"),
        ("noise: rounding to the stored type", "storage_noise"),
        ("merged model against the service", "merged"),
        ("PEFT adapter against the service", "adapter"),
    ):
        entry = _dig(behaviour, path)
        if isinstance(entry, dict):
            distance = entry.get("distance") or entry
            allowed = entry.get("tolerance") or {}
            rows.append([label, distance.get("mean"), distance.get("largest"), allowed.get("mean")])
    if result["good"] is True and behaviour:
        sentence = "The exported weights give the service's logprobs on the held-out text."
    elif result["good"] is True:
        sentence = "Every tensor is the base plus the adapter; logprobs were not compared."
    else:
        sentence = "; ".join(map(str, result.get("problems") or ["it failed its check"]))
    return {
        "good": result["good"] is True,
        "sentence": sentence,
        "tensors": weights.get("compared"),
        "changed": weights.get("changed"),
        "wrong": len(weights.get("differences") or []),
        "rows": rows,
        "notes": [str(note) for note in result.get("notes") or []],
    }


def serving(
    summary: dict[str, Any],
    config: dict[str, Any],
    checkpoints: list[dict[str, Any]],
    export_document: dict[str, Any],
) -> dict[str, Any]:
    """What goes into the serving commands, quoted for the language that it stands in."""
    folders = _dig(export_document, ["result", "folders"]) or export_document.get("folders") or {}
    merged = str(folders.get("merged") or "export/merged")
    adapter = folders.get("adapter")
    rank = config.get("lora_rank")
    state = next((row["state_path"] for row in reversed(checkpoints) if row["state_path"]), None)
    return {
        "merged_python": repr(merged),
        "merged_shell": shlex.quote(merged),
        "adapter_shell": shlex.quote(str(adapter)) if adapter else None,
        "max_rank": next((r for r in VLLM_RANKS if isinstance(rank, int) and r >= rank), 64),
        "base": shlex.quote(str(summary["models"]["base"])),
        "state": shlex.quote(str(state)) if state else None,
        "checkpoint_python": repr(str(summary["models"]["trained"])),
    }


def checkpoints(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Checkpoint records with every field that the page names."""
    return [
        {
            "name": row.get("name"),
            "step": row.get("step", row.get("batch")),
            "state_path": row.get("state_path"),
            "sampler_path": row.get("sampler_path"),
        }
        for row in rows
    ]


def examples(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first few examples, with an answer for each model."""
    return [
        {
            "prompt": row.get("question", row.get("prompt", "")),
            "reference": row.get("reference", ""),
            "answers": [
                (label, row.get(name, ""), row.get(f"{name}_stop") == "length")
                for label, name in (("base model", "base"), ("trained model", "trained"))
            ],
        }
        for row in rows[:EXAMPLES_SHOWN]
    ]


def _dig(value: Any, path: list[str]) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value
