"""Compare what was built with the service, on the same tokens: the last word on an export."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tinkerlab.export.behaviour import (
    Distance,
    Logprobs,
    Tolerance,
    distance,
    load_model,
    local_logprobs,
    shake,
    tolerance,
)
from tinkerlab.export.checkpoint import Checkpoint


class Reference(Protocol):
    """The two models at the service."""

    def base_logprobs(self, model: str, sequences: list[list[int]]) -> Logprobs: ...

    def trained_logprobs(self, checkpoint: str, sequences: list[list[int]]) -> Logprobs: ...


@dataclass(frozen=True)
class Verdict:
    """One comparison with the trained model at the service."""

    distance: Distance
    tolerance: Tolerance

    @property
    def good(self) -> bool:
        return self.tolerance.admits(self.distance)


@dataclass
class Behaviour:
    """Everything that was measured, in nats per token.

    Attributes:
        engine_noise: base at the service against base in transformers.
        storage_noise: base in transformers against itself, moved as storage rounding may.
        effect: trained against base, both at the service: what the adapter does.
        merged, adapter: each export against the trained model at the service.
        unloadable: why an export couldn't be loaded, by name.
    """

    sequences: int
    engine_noise: Distance
    storage_noise: Distance
    effect: Distance
    merged: Verdict | None = None
    adapter: Verdict | None = None
    unloadable: dict[str, str] = field(default_factory=dict)

    @property
    def blind(self) -> bool:
        """Whether the adapter changes less than the tolerance, so that nothing could show."""
        return any(
            verdict is not None and self.effect.mean <= verdict.tolerance.mean
            for verdict in (self.merged, self.adapter)
        )

    def as_json(self) -> dict[str, Any]:
        """Return plain data for ``--json`` and export.json."""
        document = asdict(self)
        for name in ("merged", "adapter"):
            verdict = getattr(self, name)
            if verdict is not None:
                document[name]["good"] = verdict.good
        document["blind"] = self.blind
        return document


def compare(
    *,
    base: Checkpoint,
    base_name: str,
    checkpoint: str,
    sequences: list[list[int]],
    service: Reference,
    merged: Path | None,
    adapter: Path | None,
    say: Callable[[str], None],
) -> Behaviour:
    """Score ``sequences`` with the service and with each export, in float32 on the CPU.

    Args:
        base_name: the base model's name at the service.
        checkpoint: what the service samples the trained model from.
        merged, adapter: folders of the exports; None leaves one out.
    """
    say(f"scoring {sum(map(len, sequences))} tokens at the service, without and with the adapter")
    base_there = service.base_logprobs(base_name, sequences)
    trained_there = service.trained_logprobs(checkpoint, sequences)

    say("scoring the base model in transformers")
    model = load_model(str(base.directory))
    base_here = local_logprobs(model, sequences)
    engine = distance(base_there, base_here)
    behaviour = Behaviour(
        sequences=len(sequences),
        engine_noise=engine,
        storage_noise=Distance(0.0, 0.0, 0),
        effect=distance(trained_there, base_there),
    )
    if adapter is not None:
        say("scoring the PEFT adapter on the base model")
        found = _with_peft(model, adapter, sequences, behaviour)
        if found is not None:
            gap = distance(trained_there, found)
            behaviour.adapter = Verdict(gap, tolerance(engine))
        del model
        gc.collect()
        model = load_model(str(base.directory)) if merged is not None else None
    if merged is not None:
        shake(model, _storage_type(base))
        behaviour.storage_noise = distance(base_here, local_logprobs(model, sequences))
        del model
        gc.collect()
        say("scoring the merged model in transformers")
        try:
            model = load_model(str(merged))
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            behaviour.unloadable["merged"] = " ".join(str(error).split())
        else:
            behaviour.merged = Verdict(
                distance(trained_there, local_logprobs(model, sequences)),
                tolerance(engine, behaviour.storage_noise),
            )
    return behaviour


def _with_peft(
    model: Any, adapter: Path, sequences: list[list[int]], behaviour: Behaviour
) -> Logprobs | None:
    from peft import PeftModel

    try:
        with warnings.catch_warnings():  # what they warn of is what the comparison measures
            warnings.simplefilter("ignore")
            wrapped = PeftModel.from_pretrained(model, str(adapter)).eval()
    except (ValueError, KeyError, RuntimeError, TypeError) as error:
        behaviour.unloadable["adapter"] = " ".join(str(error).split())[:500]
        return None
    return local_logprobs(wrapped, sequences)


def _storage_type(base: Checkpoint) -> str:
    """The coarsest type that weight matrices are stored in (quantised ones are left out)."""
    from tinkerlab.export.weights_check import ROUNDOFF

    found = {
        dtype
        for name, dtype in base.dtypes.items()
        if len(base.shapes[name]) >= 2 and dtype in ROUNDOFF
    }
    return max(found, key=ROUNDOFF.__getitem__, default="F32")


def memory_needed(base: Checkpoint) -> int:
    """Bytes that :func:`compare` takes at its peak: the model in float32, and room to work."""
    return int(base.parameters * 4 * 1.3) + (1 << 30)


def memory_available() -> int | None:
    """Bytes that the system can give without swapping; None where it doesn't say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None
