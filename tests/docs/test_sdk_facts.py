"""What the debug skill says of the SDK is true of the SDK that is installed.

Every row of its traps table has a check here and every check has its row, so a page cannot
claim what nobody looked at.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import tinker
from markdown_pages import read_page

PAGE = Path("skills/debug/SKILL.md")
TRAPS_PAGE = Path("skills/debug/references/sdk-traps.md")
CLIENTS = [tinker.ServiceClient, tinker.TrainingClient, tinker.SamplingClient, tinker.RestClient]


def table(header: str, page: Path = PAGE) -> dict[str, list[str]]:
    """The rows of the table whose first header is ``header``: first cell -> the others."""
    lines = read_page(page).split("\n")
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {header} |"))
    rows = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        first, *rest = (cell.strip() for cell in line.strip("|").split("|"))
        rows[first] = rest
    assert rows
    return rows


def is_deprecated(function: object) -> bool:
    return hasattr(function, "__deprecated__")


def returns(function: Callable[..., object]) -> str:
    return str(inspect.signature(function).return_annotation)


def async_methods_are_deprecated() -> None:
    methods = [
        getattr(client, name)
        for client in CLIENTS
        for name in dir(client)
        if name.endswith("_async") and not name.startswith("_")
    ]
    assert len(methods) > 30
    assert all(is_deprecated(method) for method in methods)
    inner = inspect.unwrap(tinker.TrainingClient.forward_backward_async)
    assert inspect.iscoroutinefunction(inner)


def client_makers_return_futures() -> None:
    makers = [name for name in dir(tinker.ServiceClient) if re.match(r"create_.*_client", name)]
    makers = [name for name in makers if not name.endswith(("_async", "rest_client"))]
    assert len(makers) >= 4
    for name in makers:
        assert "Future" in returns(getattr(tinker.ServiceClient, name)), name


def calls_return_futures() -> None:
    for name in ("forward_backward", "optim_step"):
        method = getattr(tinker.TrainingClient, name)
        assert not inspect.iscoroutinefunction(method)
        assert returns(method).startswith("APIFuture[")


def the_sdk_retries() -> None:
    from tinker.lib.internal_client_holder import InternalClientHolder
    from tinker.lib.retry_handler import RetryConfig

    retried = InternalClientHolder._is_retryable_status_code
    assert all(retried(status) for status in (408, 409, 429, 500, 503, 504))
    assert not any(retried(status) for status in (400, 401, 403, 404, 422))
    assert "MAX_WAIT_TIME = 60 * 5" in inspect.getsource(InternalClientHolder.execute_with_retries)
    assert RetryConfig().progress_timeout == 2 * 60 * 60


def saving_under_a_taken_name() -> None:
    assert "overwrite" in inspect.signature(tinker.TrainingClient.save_state).parameters
    sampler = inspect.signature(tinker.TrainingClient.save_weights_for_sampler)
    assert "overwrite" not in sampler.parameters


def sampler_weights_cannot_be_downloaded() -> None:
    from tinker_cookbook.weights import _download

    wanted = "get_checkpoint_archive_url_from_tinker_path"
    assert wanted in inspect.getsource(_download._download_archive)
    assert not hasattr(tinker.RestClient, wanted)


def loading_is_deprecated() -> None:
    assert is_deprecated(tinker.TrainingClient.load_state_with_optimizer)
    assert is_deprecated(tinker.TrainingClient.load_state)
    assert hasattr(tinker.ServiceClient, "create_training_client_from_state_with_optimizer")


def ephemeral_name_has_no_effect() -> None:
    doc = inspect.getdoc(tinker.TrainingClient.save_weights_and_get_sampling_client) or ""
    assert "`name`: Deprecated, has no effect" in doc


def terminations_are_truthy() -> None:
    from tinker_cookbook.renderers.base import ParseTermination

    assert all(ParseTermination)
    assert not ParseTermination.MALFORMED.is_clean and ParseTermination.EOS.is_clean


def chat_template_returns_a_mapping() -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({"hi": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    messages = [{"role": "user", "content": "hi"}]
    assert set(tokenizer.apply_chat_template(messages, tokenize=True)) >= {"input_ids"}
    assert tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False) == [0]


def reductions_differ() -> None:
    from tinker_cookbook.supervised.common import datum_from_model_input_weights
    from tinker_cookbook.supervised.data import conversation_to_datum

    assert inspect.signature(conversation_to_datum).parameters["reduction"].default == "mean"
    other = inspect.signature(datum_from_model_input_weights).parameters["reduction"]
    assert other.default == "none"


def get_lr_knows_two_families() -> None:
    from tinker_cookbook.exceptions import ConfigurationError
    from tinker_cookbook.hyperparam_utils import get_lr

    assert 0 < get_lr("Qwen/Qwen3-8B") < 1e-2 and 0 < get_lr("meta-llama/Llama-3.1-8B") < 1e-2
    with pytest.raises(NotImplementedError):
        get_lr("openai/gpt-oss-20b")
    with pytest.raises(ConfigurationError):
        get_lr("HuggingFaceTB/SmolLM2-135M-Instruct")


def batch_size_counts_examples() -> None:
    from datasets import Dataset
    from tinker_cookbook.supervised.data import SupervisedDatasetFromHFDataset

    rows = Dataset.from_dict({"text": ["a long example", "b", "c", "d", "e"]})
    dataset = SupervisedDatasetFromHFDataset(rows, batch_size=2, map_fn=lambda row: row["text"])
    assert len(dataset) == 2
    assert [len(dataset.get_batch(index)) for index in range(2)] == [2, 2]


def periodic_checkpoints_expire() -> None:
    import chz
    from tinker_cookbook.supervised.train import Config

    assert chz.chz_fields(Config)["ttl_seconds"]._default == 7 * 24 * 60 * 60


def train_on_what_defaults_differ() -> None:
    from tinker_cookbook.renderers.base import Renderer, TrainOnWhat
    from tinker_cookbook.supervised.data import conversation_to_datum

    dataset = inspect.signature(conversation_to_datum).parameters["train_on_what"].default
    alone = inspect.signature(Renderer.build_supervised_example).parameters["train_on_what"]
    assert dataset == TrainOnWhat.ALL_ASSISTANT_MESSAGES
    assert alone.default == TrainOnWhat.LAST_ASSISTANT_MESSAGE


TRAPS: dict[str, Callable[[], None]] = {
    "`await client.forward_backward_async(...)`": async_methods_are_deprecated,
    "`create_lora_training_client(...)`": client_makers_return_futures,
    "`forward_backward(...).result()`, then `optim_step(...)`": calls_return_futures,
    "your own retry loop or `asyncio.wait_for`": the_sdk_retries,
    "`save_state(name)` seems to hang": saving_under_a_taken_name,
    "`weights.download(...)` of a `sampler_weights/` path": sampler_weights_cannot_be_downloaded,
    "`load_state_with_optimizer(...)`": loading_is_deprecated,
    "`save_weights_and_get_sampling_client(name)`": ephemeral_name_has_no_effect,
    "`if termination:` after `parse_response`": terminations_are_truthy,
    "`list(tokenizer.apply_chat_template(...))`": chat_template_returns_a_mapping,
    "`conversation_to_datum` and `datum_from_model_input_weights` mixed": reductions_differ,
    "`get_lr(model)` raises": get_lr_knows_two_families,
    "`batch_size`": batch_size_counts_examples,
    "`ttl_seconds`": periodic_checkpoints_expire,
    "`train_on_what`": train_on_what_defaults_differ,
}


def test_every_trap_has_a_check_and_every_check_a_trap() -> None:
    assert set(table("you wrote or saw", TRAPS_PAGE)) == set(TRAPS)


@pytest.mark.parametrize("trap", TRAPS)
def test_trap_is_real(trap: str) -> None:
    TRAPS[trap]()


@pytest.mark.parametrize("name", table("exception"))
def test_exceptions_and_their_status(name: str) -> None:
    status = table("exception")[name][0]
    error = getattr(tinker, name.strip("`"))
    assert issubclass(error, tinker.TinkerError)
    if status == "-":
        assert not hasattr(error, "status_code")
    elif status == "5xx":
        assert issubclass(error, tinker.APIStatusError)
    else:
        assert vars(error)["status_code"] == int(status)


def test_the_capacity_message_is_worded_so() -> None:
    from tinker.lib import queue_state_logger

    source = inspect.getsource(queue_state_logger)
    assert "is paused. " in source and "running short on capacity" in source


def test_the_smoke_test_does_not_retry() -> None:
    assert "The request is not retried" in (
        inspect.getdoc(tinker.auth.raise_if_tinker_not_accessible) or ""
    )


def test_faults_are_listed() -> None:
    from tinkerlab.rehearsal.service.faults import KINDS

    text = read_page(PAGE)
    assert [kind for kind in KINDS if f"\n{kind} ...\n" not in text] == []
