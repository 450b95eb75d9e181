"""The Inspect provider ``tinkerlab/NAME``: tinker-cookbook's bridge, mended where it bends scores.

``InspectAPIFromTinkerSampling`` (tinker-cookbook 0.5.8) does the work. What is done here around
each of its calls, and why:

- It reports every reply as finished. Cut replies get Inspect's ``max_tokens`` stop reason, and
  the thinking in them, which the renderers leave in the text of a cut reply, is taken out.
- It hides the errors of tools from the model. They are put into the message, as the other
  providers of Inspect do.
- It fails the sample when a model does not make a tool call that the task forces, so that a wrong
  reply would be left out of the score. Here the task's scorer sees the reply.
- It gives a system message of the generation config twice (Inspect has put it there before).
- It ignores the task's own stop sequences. The text is cut at the first.
- It gives each epoch of a sample the same seed, which makes all their replies the same.
- It drops images and other media. Such a sample fails here instead.

It samples at temperature 1 where nobody says otherwise; here that is 0, as in our other
evaluations.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tinker
from inspect_ai.log._samples import sample_active
from inspect_ai.model import (
    ChatMessage,
    ChatMessageTool,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    modelapi,
)
from inspect_ai.tool import ToolChoice, ToolFunction, ToolInfo
from tinker_cookbook.eval.inspect_utils import InspectAPIFromTinkerSampling
from tinker_cookbook.renderers.base import ToolSpec

PROVIDER = "tinkerlab"
TEMPERATURE = 0.0
MAX_TOKENS = 2048  # as the bridge and Inspect have it where nobody says otherwise
EPOCH_STRIDE = 1_000_003  # between the seeds of two epochs
_THINKING = re.compile(r"<think>(.*?)(?:</think>|\Z)", re.DOTALL)


class ToolsNotSupportedError(Exception):
    """The renderer has no way to declare tools to the model."""


@dataclass(frozen=True)
class Endpoint:
    """A model that is ready to be sampled from."""

    client: Any
    renderer: Any


_endpoints: dict[str, Endpoint] = {}


def offer(name: str, endpoint: Endpoint) -> str:
    """Make a model known to Inspect and return the name that Inspect takes."""
    _endpoints[name] = endpoint
    return f"{PROVIDER}/{name}"


def declares_tools(renderer: Any) -> bool:
    """Whether the renderer can tell a model about tools."""
    tool = ToolSpec(name="look", description="Looks.", parameters={"type": "object"})
    try:
        renderer.create_conversation_prefix_with_tools([tool], "")
    except NotImplementedError:
        return False
    return True


@modelapi(name=PROVIDER)
class TinkerAPI(InspectAPIFromTinkerSampling):
    """A model that was made known with ``offer``.

    ``renderer`` is only its name: Inspect makes it a part of what identifies an evaluation.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig | None = None,
        include_reasoning: bool = False,
        renderer: str = "",
    ) -> None:
        # Not the bridge's own __init__: it takes the name for that of a tokenizer on the hub,
        # and here it may be that of a checkpoint.
        ModelAPI.__init__(self, model_name, base_url, api_key, [], config or GenerateConfig())
        endpoint = _endpoints[model_name]
        self.sampling_client = endpoint.client
        self.renderer = endpoint.renderer
        self.verbose = False
        self.include_reasoning = include_reasoning

    async def generate(
        self,
        input: list[ChatMessage],
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput:
        """One reply of the model.

        Raises:
            ToolsNotSupportedError: before anything is sampled.
            ValueError: the input holds something other than text.
            tinker.TinkerError: the service failed.
        """
        if tools and tool_choice != "none" and not declares_tools(self.renderer):
            raise ToolsNotSupportedError(type(self.renderer).__name__)
        if isinstance(tool_choice, ToolFunction):
            tools = [tool for tool in tools if tool.name == tool_choice.name]
        if tool_choice != "none":
            tool_choice = "auto"
        defaults = GenerateConfig(temperature=TEMPERATURE, max_tokens=MAX_TOKENS)
        config = defaults.merge(config)
        recorder = _Recorder(self.sampling_client)
        once = copy.copy(self)
        once.sampling_client = recorder  # pyright: ignore[reportAttributeAccessIssue]
        output = await InspectAPIFromTinkerSampling.generate(
            once,
            [_readable(message) for message in input],
            tools,
            tool_choice,
            config.model_copy(update={"system_message": None}),
        )
        for choice, sequence in zip(output.choices, recorder.sequences, strict=True):
            if sequence.stop_reason == "length":
                choice.stop_reason = "max_tokens"
                _take_thinking_out(choice.message, self.include_reasoning)
            if config.stop_seqs:
                _cut_at(choice.message, config.stop_seqs)
        # Made anew, because it derives its text from the choices only at its making.
        return ModelOutput(
            model=output.model, choices=output.choices, time=output.time, usage=output.usage
        )


class _Recorder:
    """Stands for a sampling client during one call and keeps what was sampled."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.sequences: Sequence[tinker.SampledSequence] = ()

    async def sample_async(
        self, *, prompt: tinker.ModelInput, sampling_params: tinker.SamplingParams, num_samples: int
    ) -> Any:
        sample = sample_active()
        if sampling_params.seed is not None and sample is not None:
            seed = sampling_params.seed + EPOCH_STRIDE * (sample.epoch - 1)
            sampling_params = sampling_params.model_copy(update={"seed": seed})
        found = await self.client.sample(
            prompt=prompt, sampling_params=sampling_params, num_samples=num_samples
        )
        self.sequences = found.sequences
        return found


def _readable(message: ChatMessage) -> ChatMessage:
    """The message with its tool error in the text.

    Raises:
        ValueError: it holds an image or the like.
    """
    if isinstance(message, ChatMessageTool) and message.error is not None:
        return message.model_copy(update={"content": f"Error: {message.error.message}"})
    if not isinstance(message.content, str):
        for part in message.content:
            if not isinstance(part, ContentText | ContentReasoning):
                raise ValueError(f"the bridge to Tinker takes text only, not {part.type}")
    return message


def _take_thinking_out(message: Any, keep: bool) -> None:
    """Take what a cut reply only thought out of its text; kept, it stays as reasoning."""
    text = message.text
    thought = "".join(_THINKING.findall(text))
    if thought:
        said = ContentText(text=_THINKING.sub("", text))
        message.content = [ContentReasoning(reasoning=thought), said] if keep else said.text


def _cut_at(message: Any, stops: Sequence[str]) -> None:
    """Cut the message's text where the first of the stop sequences begins."""
    text = message.text
    starts = [text.find(stop) for stop in stops if stop in text]
    if starts:
        message.text = text[: min(starts)]
