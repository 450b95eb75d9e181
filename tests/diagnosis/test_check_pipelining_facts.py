"""What the linter takes for granted about the SDK and the cookbook, asked of the packages."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

from tinkerlab.diagnosis.lint import sdk
from tinkerlab.diagnosis.lint.check import check
from tinkerlab.diagnosis.lint.rules.chat import FAMILY, is_chat_model
from tinkerlab.diagnosis.lint.rules.cookbook import NAMED_CONFIGS

# Sequential code that the cookbook's library really holds, outside its recipes.
TRUE_FINDINGS = {
    ("sequential-samples", "custom_evaluators.py"),
    ("sequential-samples", "compare.py"),
    ("wait-before-submit", "train_dpo.py"),
}


def cookbook() -> Path:
    import tinker_cookbook

    return Path(tinker_cookbook.__file__).parent


def test_no_recipe_of_the_cookbook_is_accused():
    diagnosis = check([cookbook() / "recipes"])
    assert diagnosis.checked["files"] >= 90
    assert diagnosis.checked["calls_of_the_SDK"] >= 45
    assert diagnosis.findings == []


def test_of_the_cookbooks_library_only_what_is_true_is_said():
    diagnosis = check([cookbook() / part for part in ("supervised", "rl", "distillation", "eval")])
    more = check([cookbook() / part for part in ("preference", "inference", "completers.py")])
    found = diagnosis.findings + more.findings
    said = {(f.cause, Path(f.where.rsplit(":", 1)[0]).name) for f in found}
    assert said == TRUE_FINDINGS


def clients() -> dict[str, type]:
    import tinker

    return {
        "training": tinker.TrainingClient,
        "sampling": tinker.SamplingClient,
        "service": tinker.ServiceClient,
        "rest": tinker.RestClient,
    }


@pytest.mark.parametrize("kind", sdk.CALLS)
def test_every_call_that_the_linter_knows_gives_a_future(kind):
    for name in sdk.CALLS[kind]:
        given = str(inspect.signature(getattr(clients()[kind], name)).return_annotation)
        assert "Future" in given, name


def test_which_async_methods_only_enqueue():
    for kind in ("training", "sampling", "service"):
        for name in sdk.CALLS[kind]:
            method = getattr(clients()[kind], f"{name}_async", None)
            if method is None:
                continue
            assert inspect.iscoroutinefunction(inspect.unwrap(method)), name
            enqueues = "APIFuture" in str(inspect.signature(method).return_annotation)
            assert enqueues == (name in sdk.ENQUEUED_BY_ASYNC), name


def test_async_methods_and_moved_calls_are_deprecated():
    for kind, client in clients().items():
        for name, method in inspect.getmembers(client, inspect.isfunction):
            if name.endswith("_async") and not name.startswith("_"):
                assert getattr(method, "__deprecated__", ""), f"{kind}.{name}"
    for kind, name in sdk.DEPRECATED:
        assert getattr(getattr(clients()[kind], name), "__deprecated__", ""), name


def test_a_sampler_save_takes_its_number_late_and_the_other_calls_do_not():
    import tinker

    source = inspect.getsource(inspect.unwrap(tinker.TrainingClient.save_weights_for_sampler))
    assert "_get_request_id" not in source  # taken inside the coroutine, in the SDK's thread
    for name in ("optim_step", "save_state"):
        assert "_get_request_id" in inspect.getsource(
            inspect.unwrap(getattr(tinker.TrainingClient, name))
        )


def test_the_archive_that_sampler_downloads_need_is_gone():
    import tinker

    assert not hasattr(tinker.RestClient, "get_checkpoint_archive_url_from_tinker_path")


@pytest.mark.parametrize("config", sorted(NAMED_CONFIGS))
def test_configs_demand_a_recipe_name(config):
    module, name = config.rsplit(".", 1)
    cls = getattr(importlib.import_module(module), name)
    with pytest.raises(TypeError, match="recipe_name"):
        cls()


def test_every_ending_of_a_reply_is_true():
    from tinker_cookbook.renderers import ParseTermination

    assert all(ParseTermination)


def test_chat_models_and_renderers_are_the_cookbooks():
    from tinker_cookbook import model_info

    checked = 0
    for family in ("llama", "qwen", "deepseek", "gpt_oss", "moonshot", "zai", "nvidia"):
        for version, attributes in getattr(model_info, f"get_{family}_info")().items():
            name = f"{attributes.organization}/{version}"
            chat = attributes.recommended_renderers[0] != "role_colon"
            assert is_chat_model(name) == chat, name
            assert all(FAMILY.match(renderer) for renderer in attributes.recommended_renderers)
            checked += 1
    assert checked >= 30
