#!/usr/bin/env python3
"""RLHF in three stages: supervised fine-tuning, a reward model from preference pairs, RL on it.

The first two stages are scripts/sl_trainer.py, since a reward model that reads two replies and
writes A or B is a supervised fine-tune. The third is tinker-cookbook's RL loop with its pairwise
preference environment. Each stage goes on where it stopped when the same command is given again.
A template: copy it and change what your project needs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

STAGES = ("sft", "reward-model", "rl")
HERE = Path(__file__).resolve().parent
EPILOG = """\
examples:
  python templates/rlhf/pipeline.py --chats chats.jsonl --pairs pairs.jsonl
  python templates/rlhf/pipeline.py --chats c.jsonl --pairs p.jsonl --stage rl rl.max_steps=50
  python scripts/rehearse.py run -- python templates/rlhf/pipeline.py --chats c.jsonl --pairs p.jsonl

exit codes: 0 all stages done; otherwise that of the stage that failed (1 a finding, 2 bad input)
"""


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, default=HERE / "rlhf.yaml", metavar="FILE.yaml")
    parser.add_argument("--chats", type=Path, required=True, help="JSONL to fine-tune on")
    parser.add_argument("--pairs", type=Path, required=True, help="JSONL of preference pairs")
    parser.add_argument("--out", type=Path, default=Path("runs/rlhf"), help="folder of the stages")
    parser.add_argument("--stage", choices=(*STAGES, "all"), default="all")
    parser.add_argument("--scripts", type=Path, default=HERE.parents[1] / "scripts")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    return parser.parse_intermixed_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    sys.path.insert(0, str(args.scripts))
    from tinkerlab import cli
    from tinkerlab.errors import InputError

    if not (args.scripts / "sl_trainer.py").is_file():
        raise InputError(f"--scripts {args.scripts}: no sl_trainer.py there")
    settings = read_settings(args.config, args.overrides)
    train, held_out = write_comparisons(args.pairs, args.out, settings["model"]["seed"])
    for stage in STAGES if args.stage == "all" else (args.stage,):
        cli.say(f"stage {stage}")
        if stage == "rl":
            code = run_rl(settings, args.out, train, held_out)
        else:
            data = args.chats if stage == "sft" else args.out / "reward-model.jsonl"
            code = run_trainer(args.scripts, settings, stage, data, args.out)
        if code:
            return code
    return 0


def read_settings(file: Path, overrides: list[str]) -> dict[str, dict[str, Any]]:
    """The config's sections, overridden by ``section.key=value``.

    Raises:
        InputError: an unreadable file, or a section that there is not.
    """
    import yaml

    from tinkerlab.errors import InputError
    from tinkerlab.training.config import read_yaml

    settings = read_yaml(file)
    for override in overrides:
        name, _, value = override.partition("=")
        section, _, key = name.partition(".")
        if section not in settings or not key or not value:
            raise InputError(f"override {override!r}: write section.key=value, of {list(settings)}")
        settings[section][key] = yaml.safe_load(value)
    return settings


def write_comparisons(pairs: Path, out: Path, seed: int) -> tuple[Path, Path]:
    """Leave the pairs as the later stages read them; a tenth is held out, by prompt.

    The reward model's rows have each pair both ways round, so that it can't learn that the first
    reply wins.

    Returns:
        Files of {"comparison", "label"} rows: to train on, and held out.

    Raises:
        InputError: a file that is none of preference pairs, or bad pairs.
    """
    from tinkerlab.data.preferences import scan_pairs, split_pairs
    from tinkerlab.runs import jsonl

    loaded = scan_pairs(pairs)
    loaded.refuse_bad(skip_bad_rows=False)
    train, held_out, _ = split_pairs(loaded.pairs, None, val_fraction=0.1, seed=seed)
    out.mkdir(parents=True, exist_ok=True)
    files = (out / "comparisons.jsonl", out / "held-out-comparisons.jsonl")
    flip = random.Random(seed)  # noqa: S311 (which reply comes first)
    for file, part in zip(files, (train, held_out), strict=True):
        jsonl.rewrite(file, (comparison(pair, flip.random() < 0.5) for pair in part))
    both = [comparison(pair, turned) for pair in train for turned in (False, True)]
    jsonl.rewrite(out / "reward-model.jsonl", (as_chat(row) for row in both))
    return files


def comparison(pair: Any, turned: bool) -> dict[str, Any]:
    """The pair as a row of ComparisonBuilderFromJsonl; ``turned`` puts the chosen reply second."""
    a, b = (pair.rejected, pair.chosen) if turned else (pair.chosen, pair.rejected)
    sides = {"completion_A": [a], "completion_B": [b]}
    return {
        "comparison": {"prompt_conversation": pair.prompt, **sides},
        "label": "B" if turned else "A",
    }


def as_chat(row: dict[str, Any]) -> dict[str, Any]:
    """The conversation that tinker-cookbook's reward model is asked with, and its answer."""
    from tinker_cookbook.preference.types import Comparison, ComparisonRendererFromChatRenderer

    asked = ComparisonRendererFromChatRenderer(None)._comparison_to_convo(  # type: ignore[arg-type]
        Comparison(**row["comparison"])
    )
    return {"messages": [*asked, {"role": "assistant", "content": row["label"]}]}


def run_trainer(scripts: Path, settings: dict[str, Any], stage: str, data: Path, out: Path) -> int:
    """Stages 1 and 2, by scripts/sl_trainer.py; its exit code."""
    section = settings[stage.replace("-", "_")]
    chosen = {
        **settings["model"],
        "run_name": f"rlhf-{stage}",
        "train_file": str(data),
        "log_path": str(out / stage),
        **({"train_on_what": "last_assistant_message"} if stage == "reward-model" else {}),
        **section,
    }
    overrides = [
        f"{key}={json.dumps(value) if value is None else value}" for key, value in chosen.items()
    ]
    return subprocess.run(
        [sys.executable, str(scripts / "sl_trainer.py"), *overrides], check=False
    ).returncode


def run_rl(settings: dict[str, Any], out: Path, train: Path, held_out: Path) -> int:
    """Stage 3: the cookbook's RL loop, from the weights of stage 1 against the model of stage 2.

    Raises:
        InputError: a stage before has left no checkpoint, or a setting that the cookbook's
            Config does not have.
    """
    import chz
    import tinker_cookbook.rl.train as rl
    from tinker_cookbook.preference.preference_datasets import ComparisonBuilderFromJsonl
    from tinker_cookbook.preference.types import PreferenceModelBuilderFromChatRenderer
    from tinker_cookbook.rl.preference_envs import PairwisePreferenceRLDatasetBuilder
    from tinker_cookbook.tokenizer_utils import register_tokenizer

    from tinkerlab.data import load_tokenizer, resolve_renderer
    from tinkerlab.errors import InputError
    from tinkerlab.runs import checkpoints

    last = {}
    for stage in STAGES[:2]:
        records = checkpoints.read(out / stage)
        if not records:
            raise InputError(f"{out / stage}: no checkpoint; run --stage {stage} first")
        last[stage] = records[-1]
    model = settings["model"]["base_model"]
    tokenizer = load_tokenizer(model)
    register_tokenizer(model, lambda: tokenizer)
    renderer = resolve_renderer(model, tokenizer, settings["model"]["renderer"]).name
    chosen = dict(settings["rl"])
    sizes = {name: chosen.pop(name) for name in ("batch_size", "group_size")}
    unknown = [name for name in chosen if name not in chz.chz_fields(rl.Config)]
    if unknown:
        raise InputError(f"rl.{unknown[0]}: no setting of tinker_cookbook.rl.train.Config")
    judge = PreferenceModelBuilderFromChatRenderer(
        renderer_name=renderer,
        model_name=model,
        rm_weights_path=str(last["reward-model"].sampler_path),
    )
    dataset = PairwisePreferenceRLDatasetBuilder(
        comparison_builder=ComparisonBuilderFromJsonl(train_path=str(train)),
        policy_renderer_name=renderer,
        policy_model_name=model,
        preference_model_builder=judge,
        **sizes,
    )
    if chosen.get("kl_penalty_coef"):
        chosen["kl_reference_config"] = rl.KLReferenceConfig(
            base_model=model, load_checkpoint_path=last["sft"].sampler_path
        )
    config = rl.Config(
        model_name=model,
        renderer_name=renderer,
        recipe_name="rlhf",
        dataset_builder=dataset,
        load_checkpoint_path=last["sft"].state_path,
        lora_rank=settings["model"]["lora_rank"],
        log_path=str(out / "rl"),
        evaluator_builders=[
            lambda: win_rate(judge, held_out, renderer, model, chosen["max_tokens"])
        ],
        **chosen,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the cookbook's own calls of the SDK
        asyncio.run(rl.main(config))
    return 0


def win_rate(judge: Any, held_out: Path, renderer: str, model: str, max_tokens: int) -> Any:
    """How often the judge prefers a new sample to the chosen reply of a held-out pair."""
    from tinker_cookbook.preference.comparison_policy_evaluator import ComparisonEvaluator
    from tinker_cookbook.preference.preference_datasets import ComparisonBuilderFromJsonl

    builder = ComparisonBuilderFromJsonl(train_path=str(held_out))
    labeled, _ = builder.get_labeled_comparisons()
    turned = [row if row.label == "A" else row.swap() for row in labeled]
    return ComparisonEvaluator(
        preference_model_builder=judge,
        comparisons=[row.comparison for row in turned],
        renderer_name=renderer,
        model_name_for_tokenizer=model,
        max_tokens=max_tokens,
    )


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parents[1] / "scripts"))
    from tinkerlab import cli as tinkerlab_cli

    tinkerlab_cli.run(main)
