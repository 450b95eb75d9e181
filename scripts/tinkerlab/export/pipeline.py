"""The whole export: fetch, build, prove; resumable, and never over somebody's files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tinkerlab.errors import CheckFailed, InputError
from tinkerlab.export import build, verify
from tinkerlab.export.adapter import Adapter, read_adapter
from tinkerlab.export.checkpoint import Checkpoint, read_checkpoint
from tinkerlab.export.texts import read_texts, tokenize
from tinkerlab.export.weights_check import WeightsReport, check_merged, summarise
from tinkerlab.folders import make_folder

RECORD = "export.json"
# Our own folders: the only ones that --overwrite removes.
DOWNLOADED, PEFT, MERGED = "downloaded", "adapter", "merged"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What to export.

    Attributes:
        checkpoint: ``tinker://`` path, or the folder of an adapter that was downloaded.
        base_name: the base model's name at the service.
        base_dir: its folder here.
        sampler: another checkpoint of the same weights to compare with.
        what: ``adapter``, ``merged`` or ``both``.
        check: ``full`` (weights and behaviour), or ``weights`` (no service, little memory).
    """

    checkpoint: str
    base_name: str
    base_dir: Path
    output: Path
    what: str = "both"
    sampler: str | None = None
    texts: Path | None = None
    max_texts: int = 16
    max_tokens: int = 256
    check: str = "full"
    overwrite: bool = False


@dataclass
class Result:
    """What was built and how it compares.

    Attributes:
        problems: one line each; empty means that the export is good.
        notes: what the reader should know though it is no fault.
    """

    output: Path
    folders: dict[str, Path] = field(default_factory=dict)
    weights: WeightsReport | None = None
    behaviour: verify.Behaviour | None = None
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        """Return plain data for ``--json`` and export.json."""
        weights = None
        if self.weights is not None:
            weights = asdict(self.weights) | {
                "good": self.weights.good,
                "layers": self.weights.layers,
            }
        return {
            "good": self.good,
            "output": str(self.output),
            "folders": {name: str(path) for name, path in self.folders.items()},
            "weights": weights,
            "behaviour": self.behaviour.as_json() if self.behaviour else None,
            "problems": self.problems,
            "notes": self.notes,
        }


def run(request: Request, service: verify.Reference | None, say: Say) -> Result:
    """Carry out ``request``; go on where an earlier, interrupted run of it stopped.

    Args:
        service: None where the request needs none (``check="weights"`` on a local adapter).

    Raises:
        InputError: bad input, or ``output`` holds something else.
        CheckFailed: nothing could be built.
    """
    base = read_checkpoint(request.base_dir)
    local = Path(request.checkpoint).is_dir()
    if not local:
        build.check_downloadable(request.checkpoint)
    _check_memory(request, base)
    record = _prepare(request)
    result = Result(request.output)

    downloaded = request.output / DOWNLOADED
    if _missing(downloaded, say):
        say(f"fetching {request.checkpoint}")
        if local:
            build.copy_adapter(Path(request.checkpoint), downloaded)
        else:
            build.download(request.checkpoint, downloaded)
    adapter = read_adapter(downloaded)
    result.folders["downloaded"] = downloaded
    _build_wanted(request, adapter, base, result, say)

    if "merged" in result.folders:
        _check_weights(base, adapter, result, say)
    if request.check == "full" and service is not None:
        _check_behaviour(request, base, service, result, say)
    elif not result.problems:
        result.notes.append("behaviour was not compared with the service (--check weights)")
    _write_record(request.output, record | {"result": result.as_json()})
    return result


def _build_wanted(
    request: Request, adapter: Adapter, base: Checkpoint, result: Result, say: Say
) -> None:
    steps: list[tuple[str, str, Callable[[Path], None]]] = []
    if request.what in ("adapter", "both"):
        steps.append(
            ("adapter", PEFT, lambda to: build.build_peft(adapter, base, request.base_name, to))
        )
    if request.what in ("merged", "both"):
        steps.append(("merged", MERGED, lambda to: build.build_merged(adapter, base, to)))
    for name, folder, make in steps:
        destination = request.output / folder
        try:
            if _missing(destination, say):
                say(f"building {destination}")
                make(destination)
        except CheckFailed as error:
            result.problems.append(str(error))
        else:
            result.folders[name] = destination
    if not result.folders.keys() & {"adapter", "merged"}:
        raise CheckFailed("; ".join(result.problems))


def _check_weights(base: Checkpoint, adapter: Adapter, result: Result, say: Say) -> None:
    say("comparing every tensor of the merged model with base + scale * B A")
    folder = result.folders["merged"]

    def progress(done: int, total: int) -> None:
        if done == total or done % 200 == 0:
            say(f"  {done} of {total} tensors")

    result.weights = check_merged(base, read_checkpoint(folder), adapter, progress)
    if not result.weights.good:
        result.problems.append(summarise(result.weights, folder))


def _check_behaviour(
    request: Request, base: Checkpoint, service: verify.Reference, result: Result, say: Say
) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(base.directory), local_files_only=True)
    texts = read_texts(request.texts, tokenizer, at_most=request.max_texts)
    behaviour = verify.compare(
        base=base,
        base_name=request.base_name,
        checkpoint=request.sampler or request.checkpoint,
        sequences=tokenize(texts, tokenizer, max_tokens=request.max_tokens),
        service=service,
        merged=result.folders.get("merged"),
        adapter=result.folders.get("adapter"),
        say=say,
    )
    result.behaviour = behaviour
    for name, reason in behaviour.unloadable.items():
        result.problems.append(f"{result.folders[name]} can't be loaded: {reason}")
    for name in ("merged", "adapter"):
        verdict: verify.Verdict | None = getattr(behaviour, name)
        if verdict is not None and not verdict.good:
            result.problems.append(_explain(name, verdict, result))
    if behaviour.blind:
        result.notes.append(
            f"the adapter moves logprobs by {behaviour.effect.mean:.1g} nats on average, no more "
            "than the tolerance, so the comparison of logprobs proves little: pass text like the "
            "training data with --text"
        )


def _explain(name: str, verdict: verify.Verdict, result: Result) -> str:
    line = (
        f"{result.folders[name]}: logprobs differ from the service's by up to "
        f"{verdict.distance.largest:.2g} nats (allowed {verdict.tolerance.largest:.2g}), mean "
        f"{verdict.distance.mean:.2g} (allowed {verdict.tolerance.mean:.2g})"
    )
    if name == "adapter":
        return line + "; PEFT loads the adapter but doesn't apply all of it: serve the merged model"
    if result.weights is not None and result.weights.good:
        return line + (
            "; its weights are the base plus the adapter, so the service samples other weights, "
            "or applies them elsewhere"
        )
    layers = result.weights.layers if result.weights else []
    return line + (f"; layers {', '.join(map(str, layers))} differ" if layers else "")


def _check_memory(request: Request, base: Checkpoint) -> None:
    if request.check != "full":
        return
    needed, available = verify.memory_needed(base), verify.memory_available()
    if available is not None and needed > available:
        raise InputError(
            f"comparing {request.base_name} in float32 needs about {needed / 1e9:.0f} GB of "
            f"memory and {available / 1e9:.0f} GB are free: use a larger machine, or "
            "--check weights, which compares every tensor but not what the model computes"
        )


def _missing(folder: Path, say: Say) -> bool:
    if folder.is_dir():
        say(f"{folder} is there already, from an earlier run")
        return False
    return True


def _prepare(request: Request) -> dict[str, Any]:
    """Make the output folder ours, or go on in it; return the record of what it is for."""
    identity = {
        "checkpoint": request.checkpoint,
        "base_model": request.base_name,
        "base_dir": str(request.base_dir),
    }
    output = request.output
    path = output / RECORD
    if output.is_dir() and any(output.iterdir()):
        if not path.is_file():
            raise InputError(f"{output}: not empty, and not an export: choose another --output")
        if request.overwrite:
            for name in (DOWNLOADED, PEFT, MERGED):
                shutil.rmtree(output / name, ignore_errors=True)
        elif (earlier := _identity_in(path)) != identity:
            raise InputError(
                f"{output} holds an export of {earlier.get('checkpoint')} on "
                f"{earlier.get('base_model')}: choose another --output, or --overwrite"
            )
    elif output.exists() and not output.is_dir():
        raise InputError(f"{output}: a file is in the way: choose another --output")
    make_folder(output)
    build.remove_leftovers(output)
    _write_record(output, identity)
    return identity


def _identity_in(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return {key: document[key] for key in ("checkpoint", "base_model", "base_dir")}
    except (ValueError, KeyError, TypeError, OSError):
        return {}


def _write_record(output: Path, document: dict[str, Any]) -> None:
    partial = output / f"{RECORD}.partial"
    partial.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    partial.rename(output / RECORD)
