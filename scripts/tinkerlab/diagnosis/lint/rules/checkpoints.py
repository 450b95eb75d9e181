"""Checkpoints: the right kind of path for each use, and something that stays."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tinkerlab.diagnosis.lint import sdk
from tinkerlab.diagnosis.lint.program import Program
from tinkerlab.diagnosis.lint.rules.base import Hit, line, receiver_text, seen, submits, text
from tinkerlab.diagnosis.lint.values import NOTHING, Event, Value

MIN_TTL = 3600  # "between 1 hour (3600) and 10 years": docstring of TrainingClient.save_state
RESUMES = re.compile(r"resum|last_?(checkpoint|ckpt)|latest|continue_(from|training)|restart", re.I)
TTL_SECOND = {*sdk.SAVES, "set_checkpoint_ttl_from_tinker_path"}  # ttl as 2nd argument
LOADS = {
    "create_training_client_from_state",
    "create_training_client_from_state_with_optimizer",
    "load_state",
    "load_state_with_optimizer",
}
# The cookbook's own ways to save, and words by which other code says that it does.
KEEPS = re.compile(
    r"save_checkpoint|checkpoint_manager|save_state|save_weights_(for|external)|save\b", re.I
)
SAVERS = re.compile(r"save_|_save|^save$|checkpoint|export|publish", re.IGNORECASE)
DOWNLOADS = {"download", "build_hf_model", "build_lora_adapter"}


def path_of(event: Event) -> Value:
    for key in ("model_path", "path", "tinker_path", 0):
        if key in event.args:
            return event.args[key]
    return NOTHING


def wrong_kind_of_path(program: Program) -> Iterator[Hit]:
    """``weights/`` for training, ``sampler_weights/`` for sampling: not the other way round."""
    for event in program.events:
        if event.what == "call" and not event.method.startswith("@sdk."):
            yield from wrong_path_in_config(event)
        if event.what != "submit":
            continue
        path = path_of(event)
        if path.kind != "path":
            continue
        if event.method == "create_sampling_client" and path.data == "state":
            yield Hit(
                "state-path-for-sampling",
                event.node,
                "a training checkpoint (weights/, from save_state) is given to a sampling client",
                "sample from the path of save_weights_for_sampler (sampler_weights/): "
                f"{receiver_text(event.node)}.create_sampling_client(model_path=tc."
                "save_weights_for_sampler(name).result().path)",
                evidence_of(path),
            )
        elif event.method in LOADS and path.data == "sampler":
            yield Hit(
                "sampler-path-for-training",
                event.node,
                "sampler weights (sampler_weights/) hold no training state and cannot be trained on",
                "load the path of save_state (weights/) with "
                "create_training_client_from_state_with_optimizer",
                evidence_of(path),
            )


def wrong_path_in_config(event: Event) -> Iterator[Hit]:
    """The same in a config: a run loads training state, a teacher is only sampled from."""
    loads = event.args.get("load_checkpoint_path", NOTHING)
    samples = re.search(r"Teacher|Reference|KL", event.method) is not None
    sampled = loads if samples else event.args.get("model_path", NOTHING)
    if not samples and loads.kind == "path" and loads.data == "sampler":
        yield Hit(
            "sampler-path-for-training",
            event.node,
            "sampler weights (sampler_weights/) hold no training state and cannot be trained on",
            "load_checkpoint_path takes the path of save_state (weights/)",
            evidence_of(loads),
        )
    if sampled.kind == "path" and sampled.data == "state":
        yield Hit(
            "state-path-for-sampling",
            event.node,
            "a training checkpoint (weights/, from save_state) is given where it is sampled from",
            "give the path of save_weights_for_sampler (sampler_weights/)",
            evidence_of(sampled),
        )


def evidence_of(path: Value) -> tuple[str, ...]:
    if isinstance(path.items, str):
        return (f"path {path.items}",)
    if path.call is not None:
        return (f"line {line(path.call.node)}, the path comes from {path.call.method}",)
    return ()


def sampler_download(program: Program) -> Iterator[Hit]:
    """Sampler weights handed to a download."""
    for event in program.events:
        if event.what != "call":
            continue
        last = event.method.rsplit(".", 1)[-1]
        if last == "download" and "weights" not in event.method and "tinker_path" not in event.args:
            continue
        if last not in DOWNLOADS and "archive_url" not in last:
            continue
        for value in event.args.values():
            if value.kind == "path" and value.data == "sampler":
                yield refused(event.node, evidence_of(value))
                break
    for node in ast.walk(program.tree):
        command = command_of(node)
        if re.search(r"checkpoint (download|push-hf)\b.*tinker://\S*/sampler_weights/", command):
            yield refused(node, (f"command: {command}",))


def command_of(node: ast.AST) -> str:
    """A command line written as a string or as a list of strings."""
    if isinstance(node, ast.List):
        parts = [part.value for part in node.elts if isinstance(part, ast.Constant)]
        return " ".join(map(str, parts))
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ""


def refused(node: ast.AST, evidence: tuple[str, ...]) -> Hit:
    return Hit(
        "sampler-weights-download",
        node,
        "sampler checkpoints (sampler_weights/) cannot be downloaded",
        "download the path of tc.save_state(name) (weights/) or of "
        "tc.save_weights_external(name) (external_weights/)",
        evidence,
    )


def weights_only_resume(program: Program) -> Iterator[Hit]:
    """Resuming with weights alone: Adam starts again from zero moments."""
    for event in program.events:
        if event.what != "submit":
            continue
        if event.method not in ("create_training_client_from_state", "load_state"):
            continue
        call = event.node
        if not isinstance(call, ast.Call):
            continue
        argument = call.args[0] if call.args else next((k.value for k in call.keywords), None)
        written = ast.unparse(argument) if argument is not None else ""
        reason = ""
        if RESUMES.search(written):
            reason = f"the path is {written}"
        elif goes_on_at(program, argument):
            reason = f"the run goes on at the batch of {written}"
        elif resumes_by_name(event):
            reason = "it stands where the script resumes"
        if reason:
            better = text(call).replace(
                f"{event.method}(", "create_training_client_from_state_with_optimizer("
            )
            if event.method == "load_state":
                better = f"svc.create_training_client_from_state_with_optimizer({written}).result()"
            yield Hit(
                "weights-only-resume",
                call,
                f"{event.method} loads the weights without the optimizer: a resumed run restarts "
                "Adam and the loss jumps",
                better,
                (reason,),
            )


def goes_on_at(program: Program, argument: ast.expr | None) -> bool:
    """Whether the batch counter of the same checkpoint record is used too."""
    if not isinstance(argument, (ast.Attribute, ast.Subscript)):
        return False
    record = ast.unparse(argument.value)
    written = ast.unparse(program.tree)
    counter = r"(\.|\[')(batch|epoch|step)\b(?!_)"
    return re.search(rf"(?<![\w.]){re.escape(record)}{counter}", written) is not None


def resumes_by_name(event: Event) -> bool:
    """Inside ``if resume...:`` (its body, not its else) or a function of such a name."""
    for node in event.stack:
        if isinstance(node, ast.If) and RESUMES.search(ast.unparse(node.test)):
            body = [part for statement in node.body for part in ast.walk(statement)]
            negated = isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not)
            nested = any(
                isinstance(part, ast.If)
                and event.node not in list(ast.walk(part.test))
                and any(event.node in list(ast.walk(s)) for s in part.orelse)
                for part in body
            )
            if event.node in body and not negated and not nested:
                return True
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and RESUMES.search(node.name):
            return True
    return False


def ephemeral_name(program: Program) -> Iterator[Hit]:
    """A name for the sampling client that is never kept."""
    for event in program.events:
        if event.what != "submit" or event.method != "save_weights_and_get_sampling_client":
            continue
        name = event.args.get("name", event.args.get(0))
        if name is not None and not (name.kind == "const" and name.data is None):
            client = receiver_text(event.node) or "tc"
            yield Hit(
                "name-on-ephemeral-sampler",
                event.node,
                "save_weights_and_get_sampling_client ignores its name: the weights are "
                "ephemeral, and no checkpoint will be listed",
                f"to keep them: path = {client}.save_weights_for_sampler(name).result().path, "
                "then create_sampling_client(model_path=path); otherwise leave the name out",
            )


def short_ttl(program: Program) -> Iterator[Hit]:
    """A time to live under the hour that the service asks for."""
    for event in program.events:
        if event.what not in ("submit", "call"):
            continue
        if event.what == "call" and event.method.startswith("@sdk."):
            continue
        for key, value in event.args.items():
            if key == 1 and event.what == "submit" and event.method in TTL_SECOND:
                key = "ttl_seconds"
            if not isinstance(key, str) or not key.endswith("ttl_seconds"):
                continue
            seconds = value.data
            if value.kind not in ("const", "default") or not isinstance(seconds, (int, float)):
                continue
            if not isinstance(seconds, bool) and 0 <= seconds < MIN_TTL:
                yield Hit(
                    "short-ttl",
                    event.node,
                    f"{key}={seconds:g} is under an hour: the service takes {MIN_TTL} seconds at "
                    "least",
                    f"{key}=7 * 24 * 3600, or None for a checkpoint that stays",
                )


def no_permanent_save(program: Program) -> Iterator[Hit]:
    """A script that trains from start to end and keeps nothing, or nothing for good."""
    if not program.runs_itself:
        return
    trace = program.traces[0]
    steps = [step for step in submits(trace, "optim_step") if step.loops]
    created = [
        event for event in submits(trace, *sdk.CREATES_CLIENT) if event.method.startswith("create_")
    ]
    if not steps or not created:
        return
    saves = list(submits(trace, *sdk.SAVES))
    others = [
        event
        for event in program.events
        if (event.what == "handed" and event.value.kind == "training")
        or (event.what == "call" and SAVERS.search(event.method.rsplit(".", 1)[-1]))
    ]
    if not saves and not others:
        client = receiver_text(steps[-1].node) or "tc"
        yield Hit(
            "no-permanent-save",
            steps[-1].node,
            "the script trains and ends without saving: the weights are gone with the session",
            f'after the loop: {client}.save_state("final").result()',
            severity="warning",
        )
    elif saves and not others and all(expires(save) for save in saves):
        yield Hit(
            "no-permanent-save",
            saves[-1].node,
            "every checkpoint of this script expires (ttl_seconds), the last one too",
            "save the final one without ttl_seconds",
            tuple(seen(program, save.node, "a save that expires") for save in saves[-2:]),
            severity="warning",
        )


def expires(save: Event) -> bool:
    ttl = save.args.get("ttl_seconds", save.args.get(1, NOTHING))
    return ttl.kind in ("const", "default") and isinstance(ttl.data, (int, float))
