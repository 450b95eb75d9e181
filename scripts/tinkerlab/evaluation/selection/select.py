"""From a run and results folders to a choice, its page and its picture."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinkerlab import cli
from tinkerlab.diagnosis.run_analysis import names
from tinkerlab.diagnosis.run_analysis.run import Run
from tinkerlab.errors import InputError
from tinkerlab.evaluation import hashing, results
from tinkerlab.evaluation.selection import found as found_in
from tinkerlab.evaluation.selection.checkpoints import Checkpoint, checkpoints_of, read_run
from tinkerlab.evaluation.selection.decide import Layers, decide
from tinkerlab.evaluation.selection.document import Selection, as_dict
from tinkerlab.evaluation.selection.layers import Layer, Measured, make_layer
from tinkerlab.evaluation.selection.logged import Logged, read_logged
from tinkerlab.evaluation.selection.measure import Options, measure
from tinkerlab.evaluation.selection.warnings import warnings
from tinkerlab.folders import require_writable

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
    places = list(request.results)
    if request.options is not None:
        places += measure(run, checkpoints, request.options, request.output)
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
        commands=commands(request, layers, decision.chosen, base_model),
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
    measured = make_layer("loss", found.of("loss"))
    logged = read_logged(run, checkpoints)
    if measured is not None:
        _add_to_curves(run, checkpoints, measured)
    layers = Layers(_fuller(measured, logged), benchmarks, application)
    if layers.deciding is None:
        why = "metrics.jsonl is missing or empty" if not run.metrics.rows else "no held-out metric"
        raise InputError(
            f"--run {run.path}: nothing to choose by: {why}"
            + (" is logged near a checkpoint" if run.metrics.rows else "")
            + ". Train with eval_every=N, name results with --results, or give --evaluate"
        )
    return layers


def _fuller(measured: Measured | None, logged: Logged | None) -> Layer | None:
    """The losses that cover more checkpoints; of equals those with a score for each item."""
    if measured is None or logged is None:
        return measured or logged
    return measured if len(measured.names) >= len(logged.names) else logged


def _add_to_curves(run: Run, checkpoints: Sequence[Checkpoint], measured: Measured) -> None:
    """Give a run that logged no held-out loss the measured one, for the over-fitting check."""
    if run.metrics.first(names.HELD_OUT_LOSS) is None:
        for checkpoint in checkpoints:
            if checkpoint.name in measured.names:
                value = measured.score(checkpoint.name)
                run.metrics.add({"step": checkpoint.step, names.HELD_OUT_LOSS[0]: value})


def inputs(
    request: Request, checkpoints: Sequence[Checkpoint], layers: Layers, found: found_in.Found
) -> dict[str, Any]:
    """What the selection was made from: equal inputs give the very same selection."""
    loss = layers.loss
    return {
        "run": str(request.run.resolve()),
        "checkpoints": [[c.name, c.step, c.sampler_path, c.state_path] for c in checkpoints],
        "logged": [loss.key, loss.values] if isinstance(loss, Logged) else None,
        "results": sorted(found.records.values()),
        "max_drop": request.max_drop,
    }


def commands(
    request: Request, layers: Layers, chosen: Checkpoint | None, base_model: str | None
) -> dict[str, str]:
    """What to do next, and how to repeat this."""
    told = {}
    if chosen is not None and chosen.sampler_path:
        told["measure the chosen one again, on items that chose nothing"] = shlex.join(
            [
                *("python", "scripts/eval_offline.py", "--model", base_model or "MODEL"),
                *("--checkpoint", chosen.sampler_path, "--data", "FRESH.jsonl"),
                *("--grader", _grader(layers), "--output", str(request.output / "fresh")),
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
        _refuse_another(output, document)
    results.write_whole(output / PICTURE, plot.draw(selection))
    results.write_whole(output / REPORT, report.render(selection, PICTURE).encode())
    # The document last: where it stands, the page that it speaks of is there.
    results.write_whole(
        output / DOCUMENT, cli.redact(results.dump(document, indent=2).decode()).encode() + b"\n"
    )
    return document


def _refuse_another(output: Path, document: dict[str, Any]) -> None:
    there = [name for name in (REPORT, PICTURE, DOCUMENT) if (output / name).exists()]
    if not there:
        return
    if (output / DOCUMENT).exists():
        known = results.read_json(output / DOCUMENT).get("inputs_sha256")
        if known == document["inputs_sha256"] == hashing.value_sha256(document["inputs"]):
            return
    raise InputError(
        f"{output} holds another selection ({', '.join(there)}); choose another --output, or"
        " replace it with --overwrite"
    )
