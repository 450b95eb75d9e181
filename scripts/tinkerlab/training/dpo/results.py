"""Base against trained on the held-out pairs: which reply each finds the more probable.

Written in the form of the results contract (``scripts/check_results.py``): an item is a pair,
its ground truth is "chosen", and a model's answer is the reply to which it gives the higher
summed log-probability. The base is where the run started.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tinkerlab import service
from tinkerlab.cli import say
from tinkerlab.data.messages import text_of
from tinkerlab.data.preferences import PreferencePair
from tinkerlab.runs import provenance
from tinkerlab.training.dpo.objective import LOSS, PairLogprobs, figures, pair_logprobs

if TYPE_CHECKING:
    from tinkerlab.training.dpo.run import DPORun

FOLDER = "results"


def write_results(run: DPORun, summary: dict[str, Any]) -> dict[str, Any]:
    """Score both models and write ``<run folder>/results``, unless it is there already.

    Returns:
        Its folder, both accuracies, the interval of their difference and its verdict.

    Raises:
        InputError: the service does not answer.
        tinker.TinkerError: it refused a request.
    """
    from tinkerlab.evaluation import results

    folder = run.folder.path / FOLDER
    done = _earlier(folder / results.SUMMARY_FILE, summary["sampler_path"])
    if done is None:
        base, trained = _score(run, summary["state_path"])
        pairs = run.data.held_out
        base_records, trained_records = records(pairs, base), records(pairs, trained)
        done = results.summarise(
            "rl",
            base_records,
            trained_records,
            seed=run.config.seed,
            models={
                "base": run.checkpoint or run.config.base_model,
                "trained": summary["sampler_path"],
                "renderer": run.data.renderer_name,
            },
            dataset={
                "path": str(run.folder.held_out_file.resolve()),
                "sha256": provenance.file_sha256(run.folder.held_out_file),
            },
            log_path=str(run.folder.path),
            wandb_url=summary["wandb_url"],
            extra={
                "metric": "preference accuracy: the chosen reply is the more probable",
                "rewards": figures(trained, base, run.config.dpo_beta),
            },
        )
        results.copy_logs(run.folder.path, folder, run.config.run_name)
        results.write_jsonl(folder / results.BASE_FILE, base_records)
        results.write_jsonl(folder / results.TRAINED_FILE, trained_records)
        results.write_json(folder / results.SUMMARY_FILE, done)
    say(f"held-out pairs: {done['scores']['verdict']}; {folder}")
    return {
        "path": str(folder),
        "baseline_score": done["baseline_score"],
        "trained_score": done["trained_score"],
        "difference": done["scores"]["difference"],
        "verdict": done["scores"]["verdict"],
        "rewards": done["rewards"],
    }


def records(pairs: Any, logprobs: PairLogprobs) -> list[dict[str, Any]]:
    """A record for each pair."""
    return [
        _record(index, pair, float(chosen), float(rejected))
        for index, (pair, chosen, rejected) in enumerate(
            zip(pairs, logprobs.chosen, logprobs.rejected, strict=True)
        )
    ]


def _record(index: int, pair: PreferencePair, chosen: float, rejected: float) -> dict[str, Any]:
    right = chosen > rejected
    return {
        "index": index,
        "question": "\n\n".join(f"{m['role']}: {text_of(m)}" for m in pair.prompt),
        "ground_truth": "chosen",
        "completion": text_of(pair.chosen if right else pair.rejected),
        "extracted_answer": "chosen" if right else "rejected",
        "correct": right,
        "chosen_logprob": chosen,
        "rejected_logprob": rejected,
    }


def _score(run: DPORun, state_path: str) -> tuple[PairLogprobs, PairLogprobs]:
    """Log-probabilities of the held-out pairs by the start and by the end of the run."""
    connection = service.connect(run.config.run_name, run.metadata())
    datums = run.data.datums(run.data.held_out)
    trained = connection.create_training_client_from_state(
        state_path, user_metadata=run.metadata()
    ).result()
    submitted = [client.forward(datums, LOSS) for client in (run.fresh_client(connection), trained)]
    base_output, trained_output = (future.result() for future in submitted)
    connection.close("success").result(timeout=10)
    return pair_logprobs(datums, base_output), pair_logprobs(datums, trained_output)


def _earlier(file: Any, sampler_path: str) -> dict[str, Any] | None:
    """The summary that is there, if it is of this checkpoint."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return found if found["models"]["trained"] == sampler_path else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
