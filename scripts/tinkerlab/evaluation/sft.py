"""Evaluate a supervised fine-tune: score, sample a few answers, write the results folder.

Interrupted, the same command goes on; complete, it changes nothing; asked for something else
in the same folder, it refuses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkerlab.cli import say
from tinkerlab.errors import InputError
from tinkerlab.evaluation import examples, hashing, items, nll, results
from tinkerlab.evaluation.clients import open_clients, require_same_base
from tinkerlab.evaluation.items import Rendering, TrainedRun
from tinkerlab.evaluation.nll import ScoredItem
from tinkerlab.folders import make_folder, require_writable
from tinkerlab.runs import provenance

if TYPE_CHECKING:
    import tinker

    from tinkerlab.data import ResolvedRenderer

PARTIAL_FILE = "partial.jsonl"
PROGRESS_SECONDS = 5.0


@dataclass(frozen=True)
class Plan:
    """What to evaluate, on what, and where the results go.

    Attributes:
        checkpoint: a ``tinker://<run>/sampler_weights/<name>`` path.
        data_file: the held-out rows, every one of which is scored.
        rendering: None lets the base model decide.
        run: the run whose logs belong to the results, if any.
        scores_log: where scores are kept that several evaluations share (those of the base
            model, scored against many checkpoints); None for a log of this one's own.
    """

    base_model: str
    checkpoint: str
    data_file: Path
    output: Path
    rendering: Rendering
    run: TrainedRun | None = None
    seed: int = 0
    num_examples: int = 5
    max_tokens: int = 128
    in_flight: int = nll.IN_FLIGHT
    overwrite: bool = False
    scores_log: Path | None = None


def check_checkpoint_path(path: str) -> None:
    """Refuse what cannot be sampled from, before anything is loaded.

    Raises:
        InputError: not a tinker path, or one for training.
    """
    results.run_id_of(path)
    kind = path.removeprefix("tinker://").split("/")[1]
    if kind != "sampler_weights":
        raise InputError(
            f"--checkpoint {path}: {kind} cannot be sampled from; give the sampler_weights path"
            " (sampler_path in the run's checkpoints.jsonl)"
        )


def evaluate(plan: Plan) -> dict[str, Any]:
    """Score base and trained model on the same items and write the results folder.

    Returns:
        The summary, which is also in ``summary.json``.

    Raises:
        InputError: unusable data, checkpoint or service; or the folder holds other results.
        CheckFailed: the service gave a logprob that is no finite number.
    """
    scored, resolved, tokenizer = _prepare(plan)
    dataset = _describe_dataset(plan, scored)
    done = _earlier_results(plan, dataset)
    if done is not None:
        say(f"{plan.output} already holds this evaluation; nothing to do")
        return done

    require_writable(plan.output)
    base, trained = _clients(plan)
    make_folder(plan.output)
    log = nll.ScoreLog(plan.scores_log or plan.output / PARTIAL_FILE)
    say(f"scoring {len(scored)} items under {plan.base_model} and {plan.checkpoint}")
    started = time.monotonic()
    scores = nll.score(
        {plan.base_model: base, plan.checkpoint: trained},
        scored,
        log,
        in_flight=plan.in_flight,
        progress=_progress(),
    )
    answers = examples.answers(
        base,
        trained,
        scored[: plan.num_examples],
        tokenizer,
        stop=resolved.renderer.get_stop_sequences(),
        max_tokens=plan.max_tokens,
    )
    base_records = nll.records(scored, scores[plan.base_model])
    trained_records = nll.records(scored, scores[plan.checkpoint])
    summary = results.summarise(
        "sft",
        base_records,
        trained_records,
        seed=plan.seed,
        models={
            "base": plan.base_model,
            "trained": plan.checkpoint,
            "renderer": resolved.name,
        },
        dataset=dataset,
        log_path=str(plan.run.folder) if plan.run else None,
        wandb_url=plan.run.wandb_url if plan.run else None,
        extra={"seconds": round(time.monotonic() - started, 1)},
    )
    if plan.run:
        results.copy_logs(plan.run.folder, plan.output, plan.run.name)
    results.write_jsonl(plan.output / results.EXAMPLES_FILE, answers)
    results.write_jsonl(plan.output / results.BASE_FILE, base_records)
    results.write_jsonl(plan.output / results.TRAINED_FILE, trained_records)
    # The summary last: where it stands, everything that it speaks of is there.
    results.write_json(plan.output / results.SUMMARY_FILE, summary)
    if plan.scores_log is None:
        log.path.unlink(missing_ok=True)
    return summary


def _prepare(plan: Plan) -> tuple[list[ScoredItem], ResolvedRenderer, Any]:
    """The items, and the resolved renderer and the tokenizer that made them."""
    from tinkerlab.data import load_rows, load_tokenizer, resolve_renderer

    check_checkpoint_path(plan.checkpoint)
    tokenizer = load_tokenizer(plan.base_model)
    resolved = resolve_renderer(plan.base_model, tokenizer, plan.rendering.renderer)
    for warning in resolved.warnings:
        say(f"warning: {warning}")
    rows = load_rows(plan.data_file, train_on_what=plan.rendering.train_on_what).rows
    scored = items.build_items(rows, resolved.renderer, tokenizer, plan.rendering)
    if not scored:
        raise InputError(f"{plan.data_file}: no rows to score")
    return scored, resolved, tokenizer


def _describe_dataset(plan: Plan, scored: Sequence[ScoredItem]) -> dict[str, Any]:
    # The copy among the results' logs is what a later check finds, wherever the folder went.
    path = (
        f"{results.LOGS_FOLDER}/{plan.run.name}/{plan.data_file.name}"
        if plan.run and plan.data_file == plan.run.held_out_file
        else str(plan.data_file)
    )
    source = plan.run.source if plan.run and path.startswith(results.LOGS_FOLDER) else path
    return {
        "path": path,
        "source": source,
        "split": f"{len(scored)} rows that the run never trained on" if plan.run else "all rows",
        "sha256": provenance.file_sha256(plan.data_file),
        **{k: v for k, v in asdict(plan.rendering).items() if k != "renderer"},
        "scored_tokens": sum(len(item.scored) for item in scored),
        "scored_tokens_sha256": hashing.value_sha256([item.key for item in scored]),
    }


def _earlier_results(plan: Plan, dataset: dict[str, Any]) -> dict[str, Any] | None:
    """The summary that is already there, if it is of this very evaluation.

    Raises:
        InputError: the folder holds results of another one.
    """
    path = plan.output / results.SUMMARY_FILE
    if not path.exists() or plan.overwrite:
        return None
    summary = results.read_json(path)
    models = summary.get("models") or {}
    found = {
        "base model": models.get("base"),
        "checkpoint": models.get("trained"),
        "items": (summary.get("dataset") or {}).get("scored_tokens_sha256"),
        "scoring code": summary.get("scoring_code_sha256"),
    }
    wanted = {
        "base model": plan.base_model,
        "checkpoint": plan.checkpoint,
        "items": dataset["scored_tokens_sha256"],
        "scoring code": hashing.code_sha256(),
    }
    different = [name for name, value in wanted.items() if found[name] != value]
    if different:
        raise InputError(
            f"{plan.output} holds results of another evaluation (other {', '.join(different)});"
            " choose another --output, or replace them with --overwrite"
        )
    return summary


def _clients(plan: Plan) -> tuple[tinker.SamplingClient, tinker.SamplingClient]:
    """Sampling clients of the base model and of the checkpoint.

    Raises:
        InputError: the service does not answer, knows neither, or the checkpoint was trained
            on another base model.
    """
    names = {"base": plan.base_model, "trained": plan.checkpoint}
    clients = open_clients(names, "evaluate.py nll")
    base, trained = clients["base"], clients["trained"]
    require_same_base(base, trained, plan.base_model, plan.checkpoint)
    return base, trained


def _progress() -> Callable[[int, int], None]:
    """Says how far the scoring is, at most every few seconds, and at the end."""
    last = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if done == total or now - last >= PROGRESS_SECONDS:
            last = now
            say(f"scored {done} of {total}")

    return tell
