"""Put the checks of a renderer together: tokenizer, own consistency, template, data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinkerlab.data.messages import RowError
from tinkerlab.data.preview import Preview, decode_spans
from tinkerlab.data.renderers import FALLBACK, recommended_names, resolve_renderer, try_renderer
from tinkerlab.data.tokenizers import load_tokenizer, model_folder, model_limits
from tinkerlab.diagnosis.findings import Diagnosis, Finding
from tinkerlab.diagnosis.rendering import families
from tinkerlab.diagnosis.rendering.oracles import Fault, faults
from tinkerlab.diagnosis.rendering.parity import Comparer, Parity
from tinkerlab.diagnosis.rendering.rows import check_rows
from tinkerlab.diagnosis.rendering.samples import SAMPLES, Sample
from tinkerlab.diagnosis.rendering.sides import Rendered, as_messages, rendered
from tinkerlab.diagnosis.rendering.tokens import check_tokenizer, split_markers
from tinkerlab.errors import InputError

SHOWN = ("multi-turn with system", "reasoning", "tool call")  # samples whose mask is shown

_OWN = {  # a renderer's fault on our samples: (what, fix)
    "prompt-not-a-prefix": (
        "the answer does not follow the prompt that it will be sampled from",
        "do not train with this renderer: the model would learn a continuation that it is never "
        "asked for. Newer cookbook versions mend several of these",
    ),
    "header-trained": (
        "tokens that the prompt supplies carry loss",
        "give weight only to what build_generation_prompt does not already write",
    ),
    "answer-not-trained": (
        "a part of the answer carries no loss",
        "look at the weights that build_supervised_example returns",
    ),
    "end-of-turn-not-trained": (
        "the end of the answer is not trained: the model will not learn to stop",
        "the trained part must end with one of get_stop_sequences()",
    ),
    "answer-not-parsed": (
        "parse_response does not give back the message that the renderer wrote",
        "rewards and evaluations would grade other text than the model wrote",
    ),
}


@dataclass(frozen=True)
class Request:
    """What to check; ``renderer`` is a cookbook name or ``auto``."""

    model: str
    renderer: str = "auto"
    tokenizer: str | None = None
    data: Path | None = None
    max_rows: int = 2000


def check(request: Request) -> tuple[Diagnosis, list[Preview]]:
    """The diagnosis, and examples with their trained tokens marked.

    Raises:
        InputError: no such tokenizer, renderer or data file.
    """
    source = request.tokenizer or request.model
    tokenizer = load_tokenizer(source)
    limits = model_limits(request.model)
    diagnosis = Diagnosis(healthy="")
    diagnosis.findings += check_tokenizer(tokenizer, model_folder(source), limits.vocab_size)
    diagnosis.checked["tokenizer"] = 1
    if any(finding.cause == "tokenizer-drops-text" for finding in diagnosis.findings):
        return diagnosis, []  # every further difference would only follow from this one
    renderer, name = _renderer(request, tokenizer, diagnosis)
    if renderer is None:
        return diagnosis, []
    own = _try_samples(renderer, name, tokenizer, diagnosis)
    _family(request, name, own, tokenizer, diagnosis)
    _eos(name, own, tokenizer, diagnosis)
    if name == FALLBACK and recommended_names(request.model) == [FALLBACK]:
        diagnosis.notes.append(
            "a base model: its chat template, if it has one, is not what the renderer follows"
        )
    elif getattr(tokenizer, "chat_template", None):
        _template(request, renderer, name, own, tokenizer, diagnosis)
    else:
        diagnosis.notes.append(
            "the tokenizer has no chat template: the renderer was held against itself only"
        )
    if request.data is not None:
        found, looked_at, left = check_rows(
            request.data, renderer, name, tokenizer, request.max_rows
        )
        diagnosis.findings += found
        diagnosis.checked["rows"] = looked_at
        if left:
            diagnosis.notes.append(f"{left} rows beyond --max-rows were not looked at")
    diagnosis.healthy = f"renderer {name} trains {request.model} on what it is sampled from" + (
        ", and writes what its template writes" if diagnosis.checked.get("comparisons") else ""
    )
    diagnosis.details["renderer"] = name
    return diagnosis, [
        _preview(sample, it, tokenizer) for sample, it in own if sample.name in SHOWN
    ]


def _renderer(request: Request, tokenizer: Any, diagnosis: Diagnosis) -> tuple[Any, str]:
    if request.renderer == "auto":
        resolved = resolve_renderer(request.model, tokenizer)
        diagnosis.notes.append(f"renderer {resolved.name}: {resolved.reason}")
        return resolved.renderer, resolved.name
    renderer, fault = try_renderer(request.renderer, tokenizer, request.model)
    if renderer is None and ("Unknown renderer" in fault or "image_processor" in fault):
        hint = ", ".join(recommended_names(request.model)) or "auto"
        raise InputError(f"renderer {request.renderer!r}: {fault}; for this model: {hint}")
    if renderer is None:
        diagnosis.findings.append(
            Finding(
                "wrong-renderer",
                f"renderer {request.renderer} can't work with this tokenizer",
                "renderer",
                (fault,),
                f"use {_better(request.model, tokenizer)}, or the tokenizer of the right model",
            )
        )
        diagnosis.checked["samples"] = 1
    return renderer, request.renderer


def _better(model: str, tokenizer: Any) -> str:
    resolved = resolve_renderer(model, tokenizer)
    return f"renderer {resolved.name} ({resolved.reason})"


def _try_samples(
    renderer: Any, name: str, tokenizer: Any, diagnosis: Diagnosis
) -> list[tuple[Sample, Rendered]]:
    """Render our conversations and hold each against the first oracle."""
    no_reasoning = name in families.NO_REASONING or getattr(renderer, "disables_thinking", False)
    own, refused, empty_block = [], [], []
    found: dict[str, list[str]] = {}
    for sample in SAMPLES:
        if sample.kind == "thinking" and no_reasoning:
            continue
        try:
            it = rendered(as_messages(sample, renderer), renderer)
        except RowError as error:
            refused.append(f"{sample.name} ({error})")
            continue
        own.append((sample, it))
        for fault in faults(it, renderer, tokenizer):
            if _known_gap(fault, sample, name):
                empty_block.append(sample.name)
                continue
            found.setdefault(fault.cause, []).append(f"{sample.name}: {fault.evidence}")
    diagnosis.checked["samples"] = len(own)
    if refused:
        diagnosis.notes.append("not written by this renderer: " + "; ".join(refused))
    if empty_block:
        diagnosis.notes.append(
            f"known of {name}: an answer without reasoning does not follow the prompt, which opens "
            "the think block that the example closes at once. Give it answers with reasoning, or "
            "use the _disable_thinking renderer; --data says whether your rows are concerned"
        )
    for cause, evidence in found.items():
        what, fix = _OWN[cause]
        diagnosis.findings.append(Finding(cause, what, f"renderer {name}", tuple(evidence), fix))
    return own


def _known_gap(fault: Fault, sample: Sample, name: str) -> bool:
    """The cookbook says so itself of nemotron3; DeepSeek's thinking renderer does the same."""
    return (
        fault.cause == "prompt-not-a-prefix"
        and sample.kind != "thinking"
        and families.family(name) in ("nemotron3", "deepseekv3")
        and "disable_thinking" not in name
    )


def _family(
    request: Request,
    name: str,
    own: list[tuple[Sample, Rendered]],
    tokenizer: Any,
    diagnosis: Diagnosis,
) -> None:
    """Is this renderer one for this model, by the markers and by the cookbook's table?"""
    text = "".join(tokenizer.decode(it.example.tokens) for sample, it in own if not sample.tools)
    broken = split_markers(text, tokenizer)
    recommended = recommended_names(request.model)
    evidence = [f"{marker} is {count} tokens here, not one" for marker, count in broken.items()]
    if recommended and families.family(name) not in map(families.family, recommended):
        evidence.append(
            f"tinker-cookbook's renderers for {request.model}: {', '.join(recommended)}"
        )
        if recommended == [FALLBACK]:
            evidence.append("a base model: it was never tuned on chat markers")
    if evidence:
        diagnosis.findings.insert(
            0,
            Finding(
                "wrong-renderer",
                f"renderer {name} is not made for {request.model}",
                "renderer",
                tuple(evidence),
                f"use {_better(request.model, tokenizer)}",
            ),
        )


def _eos(
    name: str, own: list[tuple[Sample, Rendered]], tokenizer: Any, diagnosis: Diagnosis
) -> None:
    """Does an engine that stops at the tokenizer's eos stop where the renderer's answers end?"""
    eos = getattr(tokenizer, "eos_token_id", None)
    if not own or families.family(name) not in families.ENDS_WITH_EOS:
        return
    trained = {
        token
        for _, it in own
        for token, weight in zip(it.example.tokens, it.example.weights, strict=True)
        if weight > 0
    }
    if eos in trained:
        return
    ends = tokenizer.decode(own[0][1].example.tokens[-1:])
    diagnosis.findings.append(
        Finding(
            "eos-not-trained",
            f"the tokenizer's eos token is {tokenizer.eos_token!r}, which no answer ends with",
            "tokenizer",
            (f"answers end with {ends!r}",),
            "an engine that stops at eos would run on after the answer: use the chat model's "
            "tokenizer files (a base model's differ in this), or set eos_token to the end marker",
        )
    )


def _template(
    request: Request,
    renderer: Any,
    name: str,
    own: list[tuple[Sample, Rendered]],
    tokenizer: Any,
    diagnosis: Diagnosis,
) -> None:
    comparer = Comparer(renderer, name, tokenizer)
    for sample, it in own:
        comparer.compare(sample, it)
    result = comparer.result
    diagnosis.checked["comparisons"] = result.compared
    reasons = {entry.key: entry.reason for entry in families.INTENDED}
    for key, samples in result.accepted.items():
        diagnosis.notes.append(f"meant [{key}]: {reasons[key]} ({len(samples)} comparisons)")
    for text, samples in result.notes.items():
        diagnosis.notes.append(f"{text}: {', '.join(samples)}")
    diagnosis.details["intended"] = result.accepted
    if result.differences and not any(f.cause == "wrong-renderer" for f in diagnosis.findings):
        diagnosis.findings.append(_mismatch(request.model, name, result, tokenizer))


def _mismatch(model: str, name: str, result: Parity, tokenizer: Any) -> Finding:
    evidence = tuple(result.differences[:6])
    what = f"renderer {name} and the chat template write different tokens on {len(result.samples)}"
    what += f" of the samples: {', '.join(result.samples[:4])}"
    # The template alone decides here: what would be chosen for a model of unknown name?
    like = resolve_renderer("", tokenizer)
    another = like.name not in (name, FALLBACK)
    recommended = name in recommended_names(model)
    if another and not recommended:
        return Finding(
            "wrong-renderer",
            f"{what}; renderer {like.name} writes the template's",
            "renderer",
            evidence,
            f"use renderer {like.name}: {like.reason}",
        )
    if another:
        evidence = (f"the template is one of renderer {like.name}", *evidence)
    held = another or families.family(name) in families.HELD_AGAINST_A_TEMPLATE
    return Finding(
        "template-mismatch",
        what,
        "chat template",
        evidence,
        f"is this the tokenizer of {model}, unedited? An engine that uses this template gives the "
        "model other prompts than it was trained on: serve it with the renderer's tokens, or with "
        "the template of the model's own revision",
        severity="problem" if held else "warning",
    )


def _preview(sample: Sample, it: Rendered, tokenizer: Any) -> Preview:
    spans = decode_spans(it.example.tokens, it.example.weights, tokenizer)
    return Preview(sample.name, f"{len(it.example.tokens)} tokens", spans, 0)
