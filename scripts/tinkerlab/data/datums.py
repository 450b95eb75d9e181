"""Turn a row into a ``tinker.Datum``, by the cookbook's own functions.

The weights of a datum say how much each target token counts. With ``reduction="mean"``, the
default here as in the cookbook's ``conversation_to_datum`` (the learning rates that its
``get_lr`` gives are meant for it), they sum to 1 in every example, so a long answer counts no
more than a short one. With ``"none"`` every trained token has weight 1. Changing it changes the
effective learning rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tinkerlab.data.messages import RowError
from tinkerlab.data.reading import Row
from tinkerlab.data.renderers import quiet_cookbook

Reduction = Literal["mean", "none"]


@dataclass(frozen=True)
class Example:
    """A rendered row before it is cut and shifted.

    Attributes:
        tokens: all N token ids, in order.
        weights: N weights; ``weights[i]`` is that of predicting ``tokens[i]``.
    """

    tokens: list[int]
    weights: list[float]


def conversation(row: Row, renderer: Any) -> list[Any]:
    """The row's messages as cookbook ``Message`` objects, tool declarations first.

    Raises:
        RowError: the renderer has no place for tools that the row declares or calls.
    """
    from tinker_cookbook.renderers import ToolCall

    messages: list[Any] = []
    for message in row.messages:
        made = dict(message)
        if calls := message.get("tool_calls"):
            if not renders_tool_calls(renderer):
                raise RowError(
                    f"has tool calls, which {type(renderer).__name__} would silently leave out"
                )
            made["tool_calls"] = [ToolCall.model_validate(call) for call in calls]
        messages.append(made)
    if not row.tools:
        return messages
    system = ""
    if messages[0]["role"] == "system":
        if not isinstance(messages[0]["content"], str):
            raise RowError("declares tools beside a system message of several parts")
        system = messages.pop(0)["content"]
    try:
        prefix = renderer.create_conversation_prefix_with_tools(list(row.tools), system)
    except NotImplementedError:
        raise RowError(f"declares tools, which {type(renderer).__name__} can't render") from None
    if any("trainable" in message for message in messages):
        prefix = [{**message, "trainable": False} for message in prefix]
    return [*prefix, *messages]


def renders_tool_calls(renderer: Any) -> bool:
    """Whether a tool call changes what the renderer writes (some drop it without a word)."""
    from tinker_cookbook.renderers import ToolCall

    known = getattr(renderer, "_tinkerlab_renders_tool_calls", None)
    if known is None:
        call = ToolCall(id="a", function=ToolCall.FunctionBody(name="look_up", arguments="{}"))
        ask: Any = {"role": "user", "content": "Look it up."}
        answer: Any = {"role": "assistant", "content": "Yes."}
        plain = renderer.build_supervised_example([ask, answer])[0].to_ints()
        calling = renderer.build_supervised_example([ask, {**answer, "tool_calls": [call]}])
        known = calling[0].to_ints() != plain
        renderer._tinkerlab_renders_tool_calls = known
    return known


def render(row: Row, renderer: Any, train_on_what: str = "all_assistant_messages") -> Example:
    """Tokens and weights of the whole conversation, uncut.

    Raises:
        RowError: the renderer can't render this row; the reason is the renderer's.
    """
    model_input, weights = _render(row, renderer, train_on_what)
    return Example(model_input.to_ints(), weights.tolist())


def build_datum(
    row: Row,
    renderer: Any,
    max_length: int | None,
    train_on_what: str = "all_assistant_messages",
    reduction: Reduction = "mean",
) -> Any:
    """The row as a ``tinker.Datum`` for the ``cross_entropy`` loss.

    Args:
        max_length: tokens that are kept, from the start; one more than the datum's length,
            because the last token is only a target.
        train_on_what: a member of the cookbook's ``TrainOnWhat``, by value.
        reduction: see the module's docstring.

    Raises:
        RowError: the renderer can't render this row, or fewer than two tokens are left.
    """
    from tinker_cookbook.supervised.common import datum_from_model_input_weights

    model_input, weights = _render(row, renderer, train_on_what)
    try:
        return datum_from_model_input_weights(model_input, weights, max_length, reduction)
    except (ValueError, AssertionError) as error:
        raise RowError(_reason(error)) from None


def trained_prompts(row: Row, train_on_what: str) -> list[int]:
    """Indices of the assistant messages that ``train_on_what`` trains."""
    roles = [message["role"] for message in row.messages]
    assistants = [i for i, role in enumerate(roles) if role == "assistant"]
    if train_on_what == "last_assistant_message":
        return [i for i in assistants if i == len(roles) - 1]
    if train_on_what == "last_assistant_turn":
        start = max((i for i, role in enumerate(roles) if role == "user"), default=-1)
        return [i for i in assistants if i > start]
    if train_on_what == "customized":
        return [i for i in assistants if row.messages[i].get("trainable")]
    return [] if train_on_what == "all_user_and_system_messages" else assistants


@dataclass(frozen=True)
class UnseenPrompt:
    """A trained turn that doesn't follow, in the example, the prompt that sampling gives.

    Attributes:
        index: of the message.
        as_last: it doesn't follow even as the last message of the conversation, so not only
            because the renderer writes turns differently once they are history.
    """

    index: int
    as_last: bool


def unseen_prompts(
    row: Row, renderer: Any, train_on_what: str, tokens: list[int]
) -> list[UnseenPrompt]:
    """Trained assistant messages whose context the model is never given when sampled.

    At each of them the tokens so far must start with ``build_generation_prompt`` of the
    messages before (tinker-cookbook issue 863: a ``<think>`` on the wrong side).

    Args:
        tokens: the row as ``render`` gives it with the same ``train_on_what``.

    Raises:
        RowError: the renderer can't render this row.
    """
    messages = [
        {key: value for key, value in message.items() if key != "trainable"}
        for message in conversation(row, renderer)
    ]
    added = len(messages) - len(row.messages)
    found = []
    for index in trained_prompts(row, train_on_what):
        place = index + added
        try:
            prompt = renderer.build_generation_prompt(messages[:place]).to_ints()
            if tokens[: len(prompt)] == prompt:
                continue
            # The weights don't matter here; this mode is the one that no renderer refuses.
            alone = renderer.build_supervised_example(messages[: place + 1], "all_tokens")
        except Exception as error:  # see _render
            raise RowError(_reason(error)) from None
        found.append(UnseenPrompt(index, alone[0].to_ints()[: len(prompt)] != prompt))
    return found


def _render(row: Row, renderer: Any, train_on_what: str) -> tuple[Any, Any]:
    from tinker_cookbook.renderers import TrainOnWhat

    quiet_cookbook()
    messages = conversation(row, renderer)
    try:
        return renderer.build_supervised_example(messages, TrainOnWhat(train_on_what))
    except Exception as error:
        # Renderers refuse with RendererError, ValueError, AssertionError, KeyError, ...; none of
        # them is our defect, all of them are about this row.
        raise RowError(_reason(error)) from None


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())[:300]
    return f"the renderer refuses it: {text or type(error).__name__}"
