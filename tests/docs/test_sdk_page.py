"""The tables of ``references/sdk.md`` and ``cli.md``, held against the installed SDK, both ways."""

from __future__ import annotations

import asyncio
import inspect
import re
import typing
from collections import defaultdict
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import tinker
from markdown_pages import read_page
from page_tables import PAGES, spans, table

# -- clients and types -----------------------------------------------------------------------


def public_methods(client: type) -> set[str]:
    """Methods for users: not the deprecated ones, nor what only the SDK itself calls."""
    internal = {"get_telemetry", "create"}
    return {
        name
        for name, value in inspect.getmembers(client, callable)
        if not name.startswith("_") and not hasattr(value, "__deprecated__")
    } - internal


def test_clients_have_the_methods_named_and_no_others() -> None:
    for client, methods, _ in table("sdk.md", "client"):
        cls = getattr(tinker, spans(client)[0])
        assert set(spans(methods)) == public_methods(cls), cls.__name__


def test_making_a_training_client_has_the_parameters_named() -> None:
    calls = re.findall(r"`(create_lora_training_client\([^`]+)`", read_page(PAGES / "sdk.md"))
    (call,) = calls
    parameters = inspect.signature(tinker.ServiceClient.create_lora_training_client).parameters
    told = [word.strip().split("=") for word in call.split("(")[1].rstrip(")").split(",")]
    assert [word[0] for word in told] == list(parameters)[1:]
    for name, value in (word for word in told if len(word) == 2):
        assert str(parameters[name].default) == value, name


# Fields of the things in a field.
WITHIN = defaultdict(set, ModelInput={"data", "format"}, ForwardBackwardOutput={"logprobs"})


def fields_of(cls: Any) -> set[str]:
    """Public data of a type: what its constructor takes, and its properties."""
    given = set(inspect.signature(cls).parameters)
    if hasattr(cls, "model_fields"):
        given |= set(cls.model_fields)
    return {name for name in given if not name.startswith("_")}


@pytest.mark.parametrize("row", table("sdk.md", "type"), ids=lambda row: row[0])
def test_types_have_the_fields_named(row: list[str]) -> None:
    cls = getattr(tinker, spans(row[0])[0])
    for name in spans(row[1]):
        if name[0].isupper() or not name.isidentifier() or name in WITHIN[row[0].strip("`")]:
            continue
        found = hasattr(cls, name) or name in fields_of(cls)
        assert found, f"{cls.__name__}.{name}"


def test_parameters_are_whole_and_their_defaults_are_as_told() -> None:
    rows = {spans(row[0])[0]: row[1] for row in table("sdk.md", "type")}
    for name in ("AdamParams", "SamplingParams", "DimuonParams"):
        fields = getattr(tinker, name).model_fields
        assert set(fields) - {"type"} <= set(spans(rows[name])), name
    adam = tinker.AdamParams()
    told = re.findall(r"`(\w+)` (-?[\d.e-]+)", rows["AdamParams"])
    assert {name: float(value) for name, value in told} == {
        name: getattr(adam, name) for name in tinker.AdamParams.model_fields
    }
    sampling = tinker.SamplingParams()
    told = re.findall(r"`(\w+)` (-?[\d.]+)", rows["SamplingParams"])
    assert told and all(getattr(sampling, name) == float(value) for name, value in told)


def test_chunks_and_stop_reasons_are_all_of_the_sdk_s() -> None:
    rows = {spans(row[0])[0]: row[1] for row in table("sdk.md", "type")}
    union = typing.get_args(tinker.ModelInputChunk)[0]
    chunks = {chunk.__name__ for chunk in typing.get_args(union)}
    assert {name for name in spans(rows["ModelInput"]) if name.endswith("Chunk")} == chunks
    for reason in typing.get_args(tinker.StopReason):
        assert f'"{reason}"' in rows["SampledSequence"]


def test_sampling_takes_what_is_named_and_nothing_is_left_out() -> None:
    line = next(
        line for line in read_page(PAGES / "sdk.md").split("\n") if "`sample(...)` also" in line
    )
    parameters = set(inspect.signature(tinker.SamplingClient.sample).parameters)
    told = {name for name in spans(line) if name.isidentifier()}
    assert told == parameters - {"self", "prompt", "num_samples", "sampling_params"}


# -- futures ----------------------------------------------------------------------------------


def test_a_time_limit_cancels_in_async_code_and_not_otherwise() -> None:
    from tinker.lib.public_interfaces.api_future import AwaitableConcurrentFuture

    async def limited(wait: Any) -> None:
        with pytest.raises(TimeoutError):
            await wait

    outer, inner, plain = Future(), Future(), Future()
    asyncio.run(limited(asyncio_wait_for(AwaitableConcurrentFuture(outer))))
    asyncio.run(limited(AwaitableConcurrentFuture(inner).result_async(timeout=0.01)))
    with pytest.raises(TimeoutError):
        AwaitableConcurrentFuture(plain).result(timeout=0.01)
    assert (outer.cancelled(), inner.cancelled(), plain.cancelled()) == (True, True, False)


async def asyncio_wait_for(future: Any) -> None:
    await asyncio.wait_for(future.coroutine(), 0.01)


def test_chunk_limits_and_retries_are_as_told() -> None:
    from tinker.lib.internal_client_holder import InternalClientHolder
    from tinker.lib.retry_handler import RetryConfig, is_retryable_status_code
    from tinker.types.client_config_response import ClientConfigResponse

    text = read_page(PAGES / "sdk.md")
    fields = ClientConfigResponse.model_fields
    datums = fields["fwdbwd_max_chunk_len"].default
    megabytes = fields["fwdbwd_max_chunk_bytes_count"].default / 1e6
    assert f"({datums} datums or {megabytes:.0f} MB each" in text
    assert RetryConfig().progress_timeout == 2 * 60 * 60
    assert "MAX_WAIT_TIME = 60 * 5" in inspect.getsource(InternalClientHolder.execute_with_retries)
    assert [code for code in range(400, 500) if is_retryable_status_code(code)] == [408, 409, 429]


def datum() -> tinker.Datum:
    inputs: dict[str, Any] = {"target_tokens": [5, 6, 7], "weights": [1.0, 1.0, 1.0]}
    return tinker.Datum(model_input=tinker.ModelInput.from_ints([4, 5, 6]), loss_fn_inputs=inputs)


def test_gradients_add_up_until_the_optimizer_step(rehearsal: Any) -> None:
    def norm(calls: int) -> float:
        client = rehearsal.client().create_lora_training_client(rehearsal.model, 4, seed=0).result()
        for _ in range(calls):
            client.forward_backward([datum()], "cross_entropy")
        return client.optim_step(tinker.AdamParams()).result().metrics["grad_norm:mean"]

    assert norm(3) == pytest.approx(3 * norm(1), rel=1e-3)


def test_a_failing_loss_of_one_s_own_poisons_the_client(rehearsal: Any) -> None:
    def fails(data: Any, logprobs: Any) -> Any:
        raise ZeroDivisionError("mine")

    client = rehearsal.client().create_lora_training_client(rehearsal.model, 4, seed=0).result()
    with pytest.raises(ZeroDivisionError):
        client.forward_backward_custom([datum()], fails).result()
    with pytest.raises(RuntimeError, match="poisoned"):
        client.forward([datum()], "cross_entropy").result()


def test_a_traced_loss_runs_here_where_the_service_does_not_take_it(rehearsal: Any) -> None:
    def neg_ll(logprobs: Any, weights: Any) -> Any:
        loss = -(logprobs * weights).sum()
        return loss, {"custom/neg_ll:sum": loss}

    service = rehearsal.client()
    client = service.create_lora_training_client(rehearsal.model, 4, seed=0).result()
    handle = service.create_custom_loss(neg_ll, {"logprobs": 1, "weights": 1}).result()
    assert handle.loss_id is None
    own = client.forward_backward_custom([datum()], handle).result().metrics
    built_in = client.forward([datum()], "cross_entropy").result().metrics
    assert own["custom/neg_ll:sum"] == pytest.approx(built_in["loss:sum"], rel=1e-4)


# -- losses, errors, environment ----------------------------------------------------------------


def test_losses_are_all_of_the_sdk_s() -> None:
    from tinker.types.loss_fn_type import LossFnType

    named = [spans(row[0])[0] for row in table("sdk.md", "`loss_fn`")]
    assert sorted(named) == sorted(typing.get_args(LossFnType))


def test_loss_inputs_settings_and_defaults_are_those_of_the_rehearsal() -> None:
    from tinkerlab.rehearsal.engine.losses import LOSSES

    rows = {spans(row[0])[0]: row for row in table("sdk.md", "`loss_fn`")}
    assert set(LOSSES) <= set(rows)
    for name, loss in LOSSES.items():
        _, inputs, _, settings = rows[name]
        assert set(spans(inputs)) | {"target_tokens"} == set(loss.required), name
        told = {key: float(value) for key, value in re.findall(r"`(\w+)` ([\d.]+)", settings)}
        assert told == dict(loss.defaults), name


def test_exceptions_and_their_status() -> None:
    for names, status, _ in table("sdk.md", "exception"):
        for name in spans(names):
            error = getattr(tinker, name)
            assert issubclass(error, tinker.TinkerError), name
            if status.isdigit():
                assert vars(error)["status_code"] == int(status)


def test_every_exception_of_the_sdk_is_there() -> None:
    named = {name for row in table("sdk.md", "exception") for name in spans(row[0])}
    ours = {
        name
        for name, value in list(vars(tinker).items())
        if inspect.isclass(value) and issubclass(value, tinker.TinkerError)
    }
    families = {"TinkerError", "APIError", "APIStatusError", "APIResponseValidationError"}
    assert named == ours - families


def test_environment_variables_are_all_of_the_sdk_s() -> None:
    folder = Path(inspect.getfile(tinker)).parent
    source = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))
    used = set(re.findall(r"[\"'](TINKER_[A-Z_]+)[\"']", source))
    assert {spans(row[0])[0] for row in table("sdk.md", "variable")} == used


# -- the tinker command ---------------------------------------------------------------------------


def commands() -> dict[str, set[str]]:
    """Every command of the installed CLI with its long options."""
    import click
    from tinker.cli.__main__ import main_cli

    leaves: dict[str, set[str]] = {}

    def walk(path: str, command: click.Command) -> None:
        if isinstance(command, click.Group):
            for name in command.list_commands(click.Context(command)):
                inner = command.get_command(click.Context(command), name)
                assert inner is not None
                walk(f"{path} {name}", inner)
        else:
            leaves[path] = {o for p in command.params for o in p.opts if o.startswith("--")}

    walk("tinker", main_cli)
    return leaves


def test_the_command_s_table_has_every_command_and_option() -> None:
    leaves = commands()
    named: dict[str, set[str]] = {}
    for command, does in table("cli.md", "command", "does"):
        words = [span for span in spans(f"{command} {does}") if span.startswith("tinker ")]
        paths = {" ".join(w for w in span.split() if w.islower()) for span in words}
        assert paths <= set(leaves), paths - set(leaves)
        options = {span.split()[0] for span in spans(does) if span.startswith("--")}
        if len(paths) > 1:
            assert not options and not any(leaves[path] for path in paths), paths
        named |= dict.fromkeys(paths, options)
    assert named == leaves


def test_run_columns_are_all_named() -> None:
    from tinker.cli.commands import run

    cells = [does for command, does in table("cli.md", "command", "does") if "run list" in command]
    told = re.findall(r"`--columns` \(([^)]+)\)", cells[0])[0].split(", ")
    assert told == re.findall(r"^  (\w+):", run._build_columns_help(), re.MULTILINE)


def test_json_keys_are_those_of_the_sdk_s_types() -> None:
    from tinker.types.get_server_capabilities_response import SupportedModel

    types = {"run list": tinker.TrainingRun, "checkpoint list": tinker.Checkpoint}
    types["model list"] = SupportedModel
    rows = {spans(row[0])[0]: spans(row[1]) for row in table("cli.md", "command", "keys")}
    assert set(rows) == set(types)
    for command, (_, *keys) in rows.items():
        assert set(keys) <= set(types[command].model_fields), command


def test_recipes_are_all_named() -> None:
    import tinker_cookbook

    folder = Path(tinker_cookbook.__file__).parent / "recipes"
    there = {
        path.stem
        for path in folder.iterdir()
        if path.suffix == ".py" or (path.is_dir() and path.name[0] != "_")
    }
    named = [span for row in table("cli.md", "for", "module") for span in spans(row[1])]
    assert {name.split(".")[1] for name in named} == there
    for name in named:
        path = folder.joinpath(*name.split(".")[1:])
        assert path.is_dir() or path.with_suffix(".py").is_file(), name
