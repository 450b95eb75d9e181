"""From a run and results folders to a choice, its page and its picture."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tinkerlab import cli
from tinkerlab.diagnosis.run_analysis import names
from tinkerlab.diagnosis.run_analysis.run import Run
from tinkerlab.errors import InputError
from tinkerlab.evaluation import results
from tinkerlab.evaluation.selection import found as found_in
from tinkerlab.evaluation.selection.checkpoints import Checkpoint, checkpoints_of, read_run
from tinkerlab.evaluation.selection.decide import Layers, decide
from tinkerlab.evaluation.selection.document import Selection, as_dict
from tinkerlab.evaluation.selection.layers import Measured, make_layer
from tinkerlab.evaluation.selection.logged import read_logged
from tinkerlab.evaluation.selection.measure import Options, measure
from tinkerlab.evaluation.selection.warnings import warnings
from tinkerlab.folders import require_writable
from tinkerlab.watching import figures

REPORT, PICTURE, DOCUMENT = "eval-report.md", "eval-report.png", "selection.json"


@dataclass(frozen=True)
class Request:
    """What to choose from.

    Attributes:
        results: folders of results, or folders that hold such.
        options: to evaluate every checkpoint; None to use what is there.
        max_drop: see ``decide``.
        command: how this selection is repeated, for the page.
    """

    run: Path
    output: Path
    results: Sequence[Path] = ()
    options: Options | None = None
    model: str | None = None
    max_drop: float = 0.0
    command: str = ""
    overwrite: bool = False


def select(request: Request) -> tuple[Selection, dict[str, Any]]:
    """Choose, and write the page, the picture and the document into ``request.output``.

    Raises:
        InputError: nothing to choose from or by; results that cannot be compared; the output
            holds another selection.
        CheckFailed: an evaluation failed.
    """
    run = read_run(request.run)
    checkpoints, left_out = checkpoints_of(run)
    require_writable(request.output)
    if not request.overwrite:
        _refuse_another(request.output, lambda known: known.get("asked") == asked(request))
    places = list(request.results)
    if request.options is not None:
        places += measure(run, checkpoints, request.options, request.output, request.overwrite)
    folders, unfinished = found_in.find(places)
    base_model = request.model or run.model
    found = found_in.gather([found_in.read(f) for f in folders], checkpoints, base_model)
    left_out += [*unfinished, *found.left_out]
    if places and not found.evaluations:
        raise InputError(
            "none of the results is about a checkpoint of this run:"
            f" {'; '.join([*unfinished, *found.left_out])}"
        )
    layers = make_layers(run, checkpoints, found)
    decision = decide(checkpoints, layers, request.max_drop)
    selection = Selection(
        run=run,
        checkpoints=checkpoints,
        layers=layers,
        decision=decision,
        warnings=[*warnings(run, checkpoints, layers, decision), *dict.fromkeys(found.cautions)],
        left_out=left_out,
        commands=commands(request, run, layers, decision.chosen, base_model),
        inputs=inputs(request, checkpoints, layers, found),
        max_drop=request.max_drop,
    )
    return selection, write(selection, request)


def make_layers(run: Run, checkpoints: Sequence[Checkpoint], found: found_in.Found) -> Layers:
    """Everything that is known of the checkpoints.

    Raises:
        InputError: nothing is, or what is known does not compare.
    """
    application = make_layer("application", found.of("application"))
    benchmarks = make_layer("benchmarks", found.of("benchmarks"), decides=application is None)
    nll = make_layer("loss", found.of("loss"))
    if nll is not None:
        _add_to_curves(run, checkpoints, nll)
    layers = Layers(read_logged(run, checkpoints), nll, benchmarks, application)
    if layers.deciding is None:
        why = "metrics.jsonl is missing or empty" if not run.metrics.rows else "no held-out metric"
        raise InputError(
            f"--run {run.path}: nothing to choose by: {why}"
            + (" is logged near a checkpoint" if run.metrics.rows else "")
            + ". Train with eval_every=N, name results with --results, or give --evaluate"
        )
    return layers


def _add_to_curves(run: Run, checkpoints: Sequence[Checkpoint], nll: Measured) -> None:
    """Give a run that logged no held-out loss the measured one, for the over-fitting check."""
    if run.metrics.first(names.HELD_OUT_LOSS) is None:
        for checkpoint in checkpoints:
            if checkpoint.name in nll.names:
                value = nll.score(checkpoint.name)
                run.metrics.add({"step": checkpoint.step, names.HELD_OUT_LOSS[0]: value})


def inputs(
    request: Request, checkpoints: Sequence[Checkpoint], layers: Layers, found: found_in.Found
) -> dict[str, Any]:
    """What the selection was made from: equal inputs give the very same selection."""
    logged = layers.logged
    return {
        "asked": asked(request),
        "checkpoints": [[c.name, c.step, c.sampler_path, c.state_path] for c in checkpoints],
        "logged": [logged.key, logged.values] if logged else None,
        "results": sorted(found.records.values()),
    }


def asked(request: Request) -> dict[str, Any]:
    """What of the inputs is known before anything is evaluated."""
    return {
        "run": str(request.run.resolve()),
        "results": sorted(str(place.resolve()) for place in request.results),
        "evaluated": asdict(request.options) if request.options else None,
        "model": request.model,
        "max_drop": request.max_drop,
    }


def commands(
    request: Request,
    run: Run,
    layers: Layers,
    chosen: Checkpoint | None,
    base_model: str | None,
) -> dict[str, str]:
    """What to do next, and how to repeat this."""
    told = {}
    if chosen is not None and chosen.sampler_path:
        by_loss = layers.application is None and layers.benchmarks is None
        nll = by_loss and figures.kind_of(run) == "sft"
        told["measure the chosen one again, on items that chose nothing"] = shlex.join(
            [
                *("python", f"scripts/{'evaluate.py' if nll else 'eval_offline.py'}"),
                *(("nll", "--base-model") if nll else ("--model",)),
                *(base_model or "MODEL", "--checkpoint", chosen.sampler_path),
                *("--data", "FRESH.jsonl"),
                *(() if nll else ("--grader", _grader(layers))),
                *("--output", str(request.output / "fresh")),
            ]
        )
        told["export it"] = shlex.join(
            [
                *("python", "scripts/export_model.py", "--checkpoint", chosen.sampler_path),
                *("--base-model", base_model or "MODEL", "--output", "export"),
            ]
        )
    if request.options is None and layers.application is None:
        told["evaluate every checkpoint on your own task"] = shlex.join(
            [
                *("python", "scripts/select_checkpoint.py", "--run", str(request.run)),
                *("--evaluate", "--data", "TASKS.jsonl", "--grader", "GRADER"),
                *("--output", str(request.output) + "-app"),
            ]
        )
    if request.command:
        told["make this page again"] = request.command
    return told


def _grader(layers: Layers) -> str:
    for evaluation in layers.application.evaluations if layers.application else ():
        grader = evaluation.identity.get("grader")
        # A file's grader is known here by its function alone.
        if isinstance(grader, dict) and "sha256" not in grader and grader.get("spec"):
            return str(grader["spec"])
    return "GRADER"


def write(selection: Selection, request: Request) -> dict[str, Any]:
    """The three files; the document that was written.

    Raises:
        InputError: another selection is there.
    """
    from tinkerlab.evaluation.selection import plot, report

    document = as_dict(selection)
    output = request.output
    document["files"] = {name: str(output / name) for name in (REPORT, PICTURE, DOCUMENT)}
    if not request.overwrite:
        _refuse_another(output, lambda known: known == json.loads(json.dumps(selection.inputs)))
    results.write_whole(output / PICTURE, plot.draw(selection))
    results.write_whole(output / REPORT, report.render(selection, PICTURE).encode())
    # The document last: where it stands, the page that it speaks of is there.
    results.write_whole(
        output / DOCUMENT, cli.redact(results.dump(document, indent=2).decode()).encode() + b"\n"
    )
    return document


def _refuse_another(output: Path, is_same: Callable[[dict[str, Any]], bool]) -> None:
    """Refuse to replace a selection, or a file of the user's, whose inputs are not the same.

    Raises:
        InputError: it is another one.
    """
    there = [name for name in (REPORT, PICTURE, DOCUMENT) if (output / name).exists()]
    if not there:
        return
    if DOCUMENT in there and is_same(results.read_json(output / DOCUMENT).get("inputs") or {}):
        return
    raise InputError(
        f"{output} holds another selection ({', '.join(there)}); choose another --output, or"
        " replace it with --overwrite"
    )
