"""Through the SDK: is the key taken, what is served, can this model be trained now?"""

from __future__ import annotations

import difflib
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tinkerlab import service
from tinkerlab.diagnosis.findings import Finding
from tinkerlab.diagnosis.service.deadline import TookTooLong, within

ASK_SECONDS = 20.0
CAPABILITIES = "/api/v1/get_server_capabilities"


@dataclass
class Access:
    """What the service lets this key do.

    Attributes:
        models: (name, trainable, sampleable, context length) of each model served.
        asked: requests that were made.
    """

    models: list[tuple[str, bool, bool, int | None]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    asked: int = 0


def access(
    model: str | None,
    round_trip: float | None,
    *,
    ask_seconds: float = ASK_SECONDS,
    create_seconds: float,
) -> Access:
    """Ask for the capabilities, then for a training client of ``model``.

    Args:
        round_trip: seconds of a bare request, for telling capacity from the network.
        ask_seconds: how long to wait for the answer to each question.
        create_seconds: how long to wait for a training client; 0 asks for none.
    """
    found = Access()
    if not _accepted(found, ask_seconds):
        return found
    _capabilities(found, ask_seconds)
    if model is None or not found.models:
        return found
    if not _served(model, found):
        return found
    if create_seconds > 0:
        _trainable_now(model, create_seconds, round_trip, found)
    return found


def _accepted(found: Access, seconds: float) -> bool:
    import tinker

    found.asked += 1
    return _told(found, tinker.auth.raise_if_tinker_not_accessible, seconds, "the credential")[0]


def _capabilities(found: Access, seconds: float) -> None:
    found.asked += 1
    good, answer = _told(
        found,
        lambda: service.rest_client().get_server_capabilities().result(),
        seconds,
        "the list of models",
    )
    if not good:
        return
    found.models = [
        (str(m.model_name), bool(m.trainable), bool(m.sampleable), m.max_context_length)
        for m in answer.supported_models
    ]
    if not found.models:
        found.findings.append(
            Finding("no-models", "the service lists no model for this key", fix="ask its team")
        )


def _served(model: str, found: Access) -> bool:
    row = next((row for row in found.models if row[0] == model), None)
    names = [name for name, *_ in found.models]
    if row is None:
        nearest = difflib.get_close_matches(model, names, n=3, cutoff=0.4)
        found.findings.append(
            Finding(
                "model-not-served",
                f"the service does not serve {model}",
                evidence=("nearest: " + ", ".join(nearest),) if nearest else (),
                fix="use one of: " + ", ".join(sorted(names)[:20]),
            )
        )
        return False
    _, trainable, sampleable, length = row
    context = f"{length:,} tokens of context" if length else "no context length given"
    found.notes.append(
        f"{model}: {'trainable' if trainable else 'NOT trainable'},"
        f" {'sampleable' if sampleable else 'NOT sampleable'}, {context}"
    )
    if not trainable:
        found.findings.append(
            Finding(
                "model-not-trainable",
                f"{model} can be sampled from but not trained",
                fix="train one of: "
                + ", ".join(name for name, can_train, *_ in found.models if can_train),
            )
        )
    return trainable


def _trainable_now(model: str, seconds: float, round_trip: float | None, found: Access) -> None:
    """Create a training client under a deadline; where it never answers, try a smaller model."""
    found.asked += 1
    started = time.monotonic()
    try:
        within(seconds, lambda: _create(model))
        found.notes.append(f"a training client of {model} took {time.monotonic() - started:.1f} s")
        return
    except TookTooLong:
        pass
    except Exception as error:
        found.findings.append(_refused(error, f"a training client of {model}"))
        return
    evidence = [f"no training client after {seconds:.0f} s"]
    if round_trip is not None:
        evidence.append(f"a bare request takes {round_trip * 1000:.0f} ms: the network is fine")
    smaller = _smaller(model, found)
    if smaller:
        found.asked += 1
        try:
            within(seconds, lambda: _create(smaller))
            evidence.append(f"{smaller} was created in that time")
        except TookTooLong:
            evidence.append(f"{smaller} did not answer either: the service as a whole is short")
        except Exception as error:
            evidence.append(f"{smaller}: {service.brief(error)}")
    found.findings.append(
        Finding(
            "no-capacity",
            f"the service is short of capacity for {model}: the client waits in a queue",
            where=model,
            evidence=tuple(evidence),
            fix="leave the script waiting (it goes on by itself), or take a smaller model",
        )
    )


def _create(model: str) -> None:
    import tinker

    connection = tinker.ServiceClient(user_metadata={"created_by": "doctor.py"})
    connection.create_lora_training_client(model, rank=8).result()
    connection.close("success").result(timeout=10)


def _smaller(model: str, found: Access) -> str | None:
    """The smallest other trainable model, by the cookbook's count of LoRA parameters."""
    from tinkerlab.planning.hyperparams import lora_parameters

    sizes = {
        name: lora_parameters(name, 8)
        for name, trainable, *_ in found.models
        if trainable and name != model
    }
    known = {name: size for name, size in sizes.items() if size is not None}
    if known:
        return min(known, key=lambda name: known[name])
    return min(sizes, default=None)


def _told(found: Access, call: Callable[[], Any], seconds: float, what: str) -> tuple[bool, Any]:
    """Whether ``call`` succeeded, and its value; a refusal becomes a finding."""
    try:
        return True, within(seconds, call)
    except TookTooLong:
        found.findings.append(_unanswered(what, seconds))
    except Exception as error:
        found.findings.append(_refused(error, what))
    return False, None


def _unanswered(what: str, seconds: float) -> Finding:
    """Why the SDK goes on repeating the question: asked once more, without it."""
    from tinker.lib.base_url import resolve_base_url

    status = None
    try:
        with urllib.request.urlopen(resolve_base_url() + CAPABILITIES, timeout=5):  # noqa: S310
            pass
    except urllib.error.HTTPError as error:
        status = error.code
    except (OSError, ValueError):
        pass
    evidence = (f"no answer to the SDK's question for {what} after {seconds:.0f} s",)
    if status is not None and (status >= 500 or status == 429):
        cause, fix = _CAUSES["RateLimitError" if status == 429 else "InternalServerError"]
        return Finding(
            cause,
            f"the service answers with HTTP {status}, and the SDK repeats the request",
            evidence=evidence,
            fix=fix,
        )
    return Finding(
        "service-not-answering",
        "the service answers bare requests but not this question",
        evidence=evidence,
        fix="wait and look again: the SDK is repeating a request that fails",
    )


_CAUSES = {
    "AuthenticationError": ("key-refused", "set TINKER_API_KEY to a valid key"),
    "BillingError": ("billing", "set up billing in the console"),
    "PermissionDeniedError": ("no-access", "use the key of the project that has access"),
    "RateLimitError": ("rate-limited", "fewer requests at once; the SDK waits by itself"),
    "InternalServerError": ("service-failing", "wait and look again; report it if it stays"),
    "APITimeoutError": ("service-not-answering", "wait and look again"),
    "APIConnectionError": ("service-unreachable", "check network, proxy and TINKER_BASE_URL"),
}


def _refused(error: BaseException, what: str) -> Finding:
    # The SDK sometimes fails while it handles a refusal; what it was handling is the cause.
    names = [kind.__name__ for link in _chain(error) for kind in type(link).__mro__]
    if "NotFoundError" in names and what == "the credential":
        return Finding(
            "not-a-tinker-service",
            "something answers at this address, but it does not know the paths of the Tinker API",
            evidence=(service.brief(error),),
            fix="check TINKER_BASE_URL (without it: the hosted service) and the proxy settings",
        )
    cause, fix = next((_CAUSES[name] for name in names if name in _CAUSES), ("service-refuses", ""))
    return Finding(
        cause,
        f"the service refuses {what}: {type(error).__name__}",
        evidence=(service.brief(error),),
        fix=fix or "read its message; python scripts/explain_error.py takes it as well",
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """``error`` and what it was raised from or while handling, innermost first."""
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in links:
        links.append(link)
        link = link.__cause__ or link.__context__
    yield from reversed(links)
