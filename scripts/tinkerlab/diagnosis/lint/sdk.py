"""What the linter knows of the Tinker SDK: clients, calls, and what each call gives.

Checked against tinker 0.38 by ``tests/diagnosis/test_check_pipelining_facts.py``.
"""

from __future__ import annotations

import re

# Submitting these takes a place in the training client's queue; each gives a future.
TRAINING = {
    "forward": "output",
    "forward_backward": "output",
    "forward_backward_custom": "output",
    "optim_step": "optim",
    "save_state": "saved_state",
    "save_weights_for_sampler": "saved_sampler",
    "save_weights_external": "saved_external",
    "load_state": "loaded",
    "load_state_with_optimizer": "loaded",
    "create_sampling_client": "sampling",
    "save_weights_and_get_sampling_client": "sampling",
}
SAMPLING = {"sample": "response", "compute_logprobs": "logprobs"}
SERVICE = {
    "create_lora_training_client": "training",
    "create_training_client_from_state": "training",
    "create_training_client_from_state_with_optimizer": "training",
    "create_sampling_client": "sampling",
    "create_custom_loss": "loss_handle",
}
CALLS = {"training": TRAINING, "sampling": SAMPLING, "service": SERVICE}

# These answer at once, without a future.
DIRECT = {
    ("training", "get_tokenizer"): "tokenizer",
    ("sampling", "get_tokenizer"): "tokenizer",
    ("training", "get_info"): "info",
    ("service", "create_rest_client"): "rest",
    ("service", "get_server_capabilities"): "info",
}

CREATES_CLIENT = {name for name, gives in SERVICE.items() if gives in ("training", "sampling")} | {
    "save_weights_and_get_sampling_client"
}

# `await X_async()` of these only enqueues the request and gives its future; of every other
# method it waits for the result.
ENQUEUED_BY_ASYNC = {
    "forward",
    "forward_backward",
    "forward_backward_custom",
    "optim_step",
    "save_state",
    "save_weights_for_sampler",
    "save_weights_external",
    "load_state",
    "load_state_with_optimizer",
}

GRADIENTS = {"forward_backward", "forward_backward_custom"}
SAVES = {"save_state", "save_weights_for_sampler", "save_weights_external"}

# Methods whose name alone says that the receiver is a client of this kind.
TELLING = {
    "forward_backward": "training",
    "forward_backward_custom": "training",
    "optim_step": "training",
    "save_weights_for_sampler": "training",
    "save_weights_external": "training",
    "save_weights_and_get_sampling_client": "training",
    "compute_logprobs": "sampling",
    "create_lora_training_client": "service",
    "create_training_client_from_state": "service",
    "create_training_client_from_state_with_optimizer": "service",
}

DEPRECATED = {
    ("training", "load_state"): "create_training_client_from_state(path).result() of the service",
    (
        "training",
        "load_state_with_optimizer",
    ): "create_training_client_from_state_with_optimizer(path).result() of the service",
    ("service", "create_rest_client"): "tinker.RestClient()",
    (
        "service",
        "get_server_capabilities",
    ): "tinker.RestClient().get_server_capabilities().result()",
}

CLASSES = {
    "tinker.ServiceClient": "service",
    "tinker.TrainingClient": "training",
    "tinker.SamplingClient": "sampling",
    "tinker.RestClient": "rest",
}

_NAMES = (
    (re.compile(r"^(tc|(lora_)?train(ing|er)?_?client|trainer_client)$"), "training"),
    (re.compile(r"^(sampler|sampling_?client|(\w+_)?sampl(ing|er)_client)$"), "sampling"),
    (re.compile(r"^(svc|service|service_?client)$"), "service"),
    (re.compile(r"^(rest|rest_?client)$"), "rest"),
)


def kind_of_name(name: str) -> str:
    """The kind of client that a parameter of this conventional name holds, or ""."""
    last = name.rsplit(".", 1)[-1].lstrip("_").lower()
    return next((kind for pattern, kind in _NAMES if pattern.match(last)), "")


def kind_of_annotation(text: str) -> str:
    """The kind of client that an annotation such as ``tinker.TrainingClient | None`` means."""
    for name, kind in CLASSES.items():
        if re.search(rf"\b{name.rsplit('.', 1)[1]}\b", text):
            return "" if re.search(r"Future|list|List|dict|Dict|Callable", text) else kind
    if re.search(r"\b(torch\.Tensor|Tensor|np\.ndarray|numpy\.ndarray|ndarray|TensorData)\b", text):
        return "tensor"
    return "tokenizer" if re.search(r"\b\w*Tokenizer\w*\b", text) else ""
