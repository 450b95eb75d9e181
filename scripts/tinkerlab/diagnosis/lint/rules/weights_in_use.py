"""Which weights a sampling client holds, and how far the data are from the trained policy."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tinkerlab.diagnosis.lint.program import Program
from tinkerlab.diagnosis.lint.rules.base import (
    Hit,
    is_async,
    line,
    receiver_text,
    seen,
    submits,
)
from tinkerlab.diagnosis.lint.values import NOTHING, Event, Value, place

# Clients that are meant to stay as they are.
FROZEN = re.compile(
    r"ref|teacher|base|init|frozen|fixed|before|old|prev|orig|untrained|start|judge|grader|"
    r"reward|critic|opponent|behaviou?r|anchor|snapshot",
    re.IGNORECASE,
)
POLICY_LOSSES = {"importance_sampling", "ppo", "cispo", "dro", "gspo", "stable_reinforce"}
COLLECTS = re.compile(r"sampl|rollout|generat|collect|play|episode|trajector", re.IGNORECASE)


def stale_sampler(program: Program) -> Iterator[Hit]:
    """Sampling with a client that was made before the weights were updated."""
    for trace in program.traces:
        steps = list(submits(trace, "optim_step"))
        uses = [(event, client) for event in trace if (client := sampled_from(event)) is not None]
        newest = max((weights_of(client, trace) for _, client in uses), default=-1)
        for event, client in uses:
            if client.refreshed or FROZEN.search(used_name(event)):
                continue
            born = weights_of(client, trace)
            if made_from_training(client):
                step = next(
                    (s for s in steps if born < s.index < event.index and same_run(client, s)),
                    None,
                )
                # A newer client is sampled from too: the old one is there to compare with.
                if step is not None and newest <= step.index:
                    yield stale(program, event, client, step)
            elif client.call is None or client.call.method == "create_sampling_client":
                step = trained_in_its_loop(event, steps, trace)
                if step is not None and newest <= born < step.index:
                    yield stale(program, event, client, step)


def sampled_from(event: Event) -> Value | None:
    """The client that is sampled from here, or handed to a function that is not in the file."""
    if event.what == "submit" and event.method == "sample":
        return event.receiver
    if event.what == "handed" and event.value.kind == "sampling":
        return event.value
    return None


def used_name(event: Event) -> str:
    if event.what == "submit":
        return receiver_text(event.node)
    return ast.unparse(event.node)


def weights_of(client: Value, trace: list[Event]) -> int:
    """When the weights that a client holds were saved, as the index of an event."""
    made = client.call
    if made is None or made.method != "create_sampling_client":
        return client.born
    save = made.args.get("model_path", made.args.get(0, NOTHING)).call
    here = save is not None and save.index < len(trace) and trace[save.index] is save
    return save.index if save is not None and here else client.born


def made_from_training(client: Value) -> bool:
    made = client.call
    if made is None:
        return False
    if made.method == "save_weights_and_get_sampling_client":
        kind = made.args.get("kind", NOTHING)
        return kind.data != "inflight"  # an inflight client takes up new weights by itself
    path = made.args.get("model_path", made.args.get(0, NOTHING))
    return path.call is not None and path.call.method == "save_weights_for_sampler"


def same_run(client: Value, step: Event) -> bool:
    made = client.call
    if made is None:
        return True
    source = made
    if made.method == "create_sampling_client":
        path = made.args.get("model_path", made.args.get(0, NOTHING))
        source = path.call or made
    known = source.client is not None and step.client is not None
    # The same client may go by another name in another function.
    return not known or source.client == step.client or isinstance(step.client, str)


def trained_in_its_loop(event: Event, steps: list[Event], trace: list[Event]) -> Event | None:
    """A client that came from outside and is sampled from round after round of training."""
    made = place(event.node)
    on_policy = [
        other
        for other in submits(trace, "forward_backward")
        if set(other.loops) & set(event.loops)
        and loss_of(other) in POLICY_LOSSES
        and any(made in value.origins for value in other.args.values())
    ]
    if not on_policy:
        return None
    for step in steps:
        if step.index < event.index and set(step.loops) & set(event.loops):
            return step
    return None


def loss_of(event: Event) -> str:
    given = event.args.get("loss_fn", event.args.get(1, NOTHING))
    return given.data if isinstance(given.data, str) else ""


def stale(program: Program, event: Event, client: Value, step: Event) -> Hit:
    name = receiver_text(event.node) if event.what == "submit" else ""
    name = name or "the sampling client"
    made = client.call
    trainer = receiver_text(step.node) or "tc"
    renew = f"{trainer}.save_weights_and_get_sampling_client()"
    renew = f"await {renew}" if is_async(event) else f"{renew}.result()"
    evidence = [seen(program, made.node, "the client is made")] if made is not None else []
    evidence.append(seen(program, step.node, "the weights change"))
    return Hit(
        "stale-sampler",
        event.node,
        f"{name} still holds the weights from before the update: a sampling client never "
        "follows the training",
        f"a new client after the update and before sampling again: {renew}",
        tuple(evidence),
    )


def off_policy_importance_sampling(program: Program) -> Iterator[Hit]:
    """Several updates on the same samples with the loss that does not clip the ratio."""
    for trace in program.traces:
        collecting = [event for event in trace if collects(event)]
        for event in submits(trace, "forward_backward"):
            if loss_of(event) != "importance_sampling" or not event.loops:
                continue
            inner = event.loops[-1]
            steps = [step for step in submits(trace, "optim_step") if inner in step.loops]
            if not steps or any(inner in other.stack for other in collecting) or once(inner):
                continue
            outer = event.loops[:-1]
            fresh = next(
                (
                    other
                    for other in collecting
                    if other.index < event.index
                    and (not outer or outer[-1] in other.stack)
                    and fed(event, other)
                ),
                None,
            )
            if fresh is not None:
                yield off_policy(program, event, steps[0], fresh, inner)
        yield from rare_refresh(program, trace)


def collects(event: Event) -> bool:
    if event.what == "submit":
        return event.method == "sample"
    if event.what == "call" and not event.method.startswith("@sdk."):
        return bool(COLLECTS.search(event.method.rsplit(".", 1)[-1]))
    return False


def fed(event: Event, source: Event) -> bool:
    """The trained data come from these samples, or from a call that says that it collects."""
    made = (line(source.node), getattr(source.node, "col_offset", 0))
    if source.what == "submit":
        return any(made in value.origins for value in event.args.values())
    return True


def once(loop: ast.AST) -> bool:
    return isinstance(loop, ast.For) and ast.unparse(loop.iter) in ("range(1)", "(0,)", "[0]")


def off_policy(program: Program, event: Event, step: Event, fresh: Event, loop: ast.AST) -> Hit:
    return Hit(
        "off-policy-importance-sampling",
        event.node,
        "several updates on the same samples with importance_sampling, which does not clip the "
        "ratio: from the second update on the data are off-policy and the KL can run away",
        'use loss_fn="ppo" (or "cispo"), or one optim_step for each set of samples',
        (
            seen(program, fresh.node, "the samples"),
            seen(program, loop, "the loop over updates"),
            seen(program, step.node, "the update"),
        ),
    )


def rare_refresh(program: Program, trace: list[Event]) -> Iterator[Hit]:
    """A sampling client that only some rounds renew, with the unclipped loss."""
    for sample in submits(trace, "sample"):
        client = sample.receiver
        if not client.refreshed or not made_from_training(client):
            continue
        made = client.call
        for event in submits(trace, "forward_backward"):
            if loss_of(event) == "importance_sampling" and set(event.loops) & set(sample.loops):
                yield Hit(
                    "off-policy-importance-sampling",
                    event.node,
                    "the samples come from weights several updates old, and importance_sampling "
                    "does not clip the ratio: the KL can run away",
                    'renew the sampling client for every update, or use loss_fn="ppo"',
                    (
                        seen(program, made.node, "renewed in some rounds only")
                        if made is not None
                        else "",
                        seen(program, sample.node, "sampled from in every round"),
                    ),
                )
                return


# tinker-cookbook #822: at three steps the KL was thirty times that of ppo.
STALE_STEPS = 3


def substeps(program: Program) -> Iterator[Hit]:
    """The cookbook's RL loop with stale samples or substeps, and its unclipped default loss."""
    stale = next((event for event in program.events if allows_stale_samples(event)), None)
    for event in program.events:
        if event.what != "call" or not event.method.endswith("rl.train.Config"):
            continue
        count = event.args.get("num_substeps", NOTHING).data
        loss = event.args.get("loss_fn", Value("const", data="importance_sampling")).data
        if stale is not None and "async_config" in event.args and loss == "importance_sampling":
            steps = stale.args["max_steps_off_policy"].data
            yield Hit(
                "off-policy-importance-sampling",
                stale.node,
                f"samples may come from weights {steps} steps old, and importance_sampling does "
                "not clip the ratio: the KL can run away",
                'loss_fn="ppo", or max_steps_off_policy=1',
                severity="warning",
            )
        if isinstance(count, int) and count > 1 and loss == "importance_sampling":
            yield Hit(
                "off-policy-importance-sampling",
                event.node,
                f"num_substeps={count} makes {count} updates on each set of samples, with "
                "importance_sampling, which does not clip the ratio",
                'loss_fn="ppo", or num_substeps=1',
                severity="warning",
            )


def allows_stale_samples(event: Event) -> bool:
    """Whether this builds the cookbook's AsyncConfig with a lag of several steps."""
    steps = event.args.get("max_steps_off_policy", NOTHING).data
    return (
        event.what == "call"
        and event.method.endswith("AsyncConfig")
        and isinstance(steps, int)
        and steps >= STALE_STEPS
    )
