"""What the bridge mends, each with the cookbook's own bridge beside it, which still needs it.

Where the second half of such a test fails, the cookbook has mended the fault and our part can go.
"""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import tinker
from inspect_ai.model import (
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    ContentImage,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    get_model,
)
from inspect_ai.tool import ToolCall, ToolCallError, ToolFunction, ToolInfo, ToolParams
from tinker_cookbook.eval.inspect_utils import InspectAPIFromTinkerSampling
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.renderers import get_renderer

from tinkerlab.data import load_tokenizer
from tinkerlab.evaluation.inspect import bridge

USER = ChatMessageUser(content="What is 2 plus 2?")
ADD = ToolInfo(name="add", description="Adds.", parameters=ToolParams())
LOOK = ToolInfo(name="look", description="Looks.", parameters=ToolParams())


class Scripted:
    """Stands for a sampling client that gives one reply, and keeps what it was asked."""

    def __init__(self, tokenizer, text: str, finished: bool = True):
        end = "<|im_end|>" if finished else ""
        self.tokens = tokenizer.encode(text + end, add_special_tokens=False)
        self.stop_reason = "stop" if finished else "length"
        self.tokenizer = tokenizer
        self.asked: list[dict] = []

    async def sample(self, **request):
        self.asked.append(request)
        sequence = SimpleNamespace(tokens=self.tokens, stop_reason=self.stop_reason)
        return SimpleNamespace(sequences=[sequence] * request["num_samples"])

    sample_async = sample

    @property
    def prompt(self) -> str:
        return self.tokenizer.decode(self.asked[-1]["prompt"].to_ints())

    @property
    def params(self) -> tinker.SamplingParams:
        return self.asked[-1]["sampling_params"]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("tiny:llama")


class Both:
    """The same scripted reply through our bridge and through the cookbook's."""

    def __init__(self, tokenizer, text="Four.", finished=True, renderer="qwen3", **options):
        self.client = Scripted(tokenizer, text, finished)
        made = get_renderer(renderer, tokenizer)
        name = bridge.offer("scripted", bridge.Endpoint(self.client, made))
        self.renderer = made
        self.ours = get_model(name, memoize=False, **options).api
        theirs = InspectAPIFromTinkerSampling.__new__(InspectAPIFromTinkerSampling)
        vars(theirs).update(vars(self.ours))
        self.theirs = theirs

    def generate(
        self, which="ours", messages=(USER,), tools=(), choice: Any = "auto", **config: Any
    ):
        api = getattr(self, which)
        return asyncio.run(
            api.generate(list(messages), list(tools), choice, GenerateConfig(**config))
        )


def test_a_finished_reply(tokenizer):
    both = Both(tokenizer)
    for which in ("ours", "theirs"):
        output = both.generate(which)
        assert (output.completion, output.stop_reason) == ("Four.", "stop")
        assert output.usage.output_tokens == len(both.client.tokens)


def test_a_cut_reply_is_called_so(tokenizer):
    both = Both(tokenizer, finished=False)
    assert both.generate().stop_reason == "max_tokens"
    assert both.generate("theirs").stop_reason == "stop"


@pytest.mark.parametrize(
    "text, said",
    [
        ("<think>Two and two is 4, so the answer is", ""),
        ("<think>Two and two.</think>\n\nIt is 4 bec", "\n\nIt is 4 bec"),
        ("It is 4 bec", "It is 4 bec"),
    ],
)
def test_thinking_in_a_cut_reply_is_no_answer(tokenizer, text, said):
    both = Both(tokenizer, text, finished=False)
    assert both.generate().completion == said
    assert both.generate("theirs").completion == text


def test_thinking_that_is_kept_stays_apart(tokenizer):
    both = Both(tokenizer, "<think>Two", finished=False, include_reasoning=True)
    (reasoning, text) = both.generate().choices[0].message.content
    assert isinstance(reasoning, ContentReasoning) and reasoning.reasoning == "Two"
    assert isinstance(text, ContentText) and text.text == ""


def test_thinking_of_a_finished_reply_is_stripped_or_kept(tokenizer):
    text = "<think>Two and two.</think>Four."
    assert Both(tokenizer, text).generate().completion == "Four."
    kept = Both(tokenizer, text, include_reasoning=True).generate().choices[0].message.content
    assert [part.type for part in kept] == ["reasoning", "text"]


def test_the_model_sees_the_error_of_a_tool(tokenizer):
    call = ToolCall(id="1", function="add", arguments={"x": -1})
    error = ToolCallError("unknown", "negative numbers are not for me")
    messages = [
        USER,
        ChatMessageAssistant(content="", tool_calls=[call]),
        ChatMessageTool(content="", tool_call_id="1", function="add", error=error),
    ]
    both = Both(tokenizer)
    both.generate(messages=messages, tools=[ADD])
    assert "Error: negative numbers are not for me" in both.client.prompt
    both.generate("theirs", messages=messages, tools=[ADD])
    assert "negative numbers" not in both.client.prompt


@pytest.mark.parametrize("choice", ["any", ToolFunction(name="add")])
def test_a_forced_call_that_is_not_made_is_for_the_scorer(tokenizer, choice):
    both = Both(tokenizer)
    assert both.generate(tools=[ADD, LOOK], choice=choice).completion == "Four."
    assert ('"look"' in both.client.prompt) == (choice == "any")
    assert '"add"' in both.client.prompt
    with pytest.raises(ConfigurationError):
        both.generate("theirs", tools=[ADD, LOOK], choice=choice)


def test_a_call_comes_back_as_one(tokenizer):
    text = '<tool_call>\n{"name": "add", "arguments": {"x": 2}}\n</tool_call>'
    (call,) = Both(tokenizer, text).generate(tools=[ADD]).choices[0].message.tool_calls
    assert (call.function, call.arguments) == ("add", {"x": 2})


def test_tools_that_are_not_to_be_used_are_not_declared(tokenizer):
    both = Both(tokenizer)
    both.generate(tools=[ADD], choice="none")
    assert '"add"' not in both.client.prompt


def test_a_renderer_without_tools_samples_nothing(tokenizer):
    both = Both(tokenizer, renderer="role_colon")
    assert not bridge.declares_tools(both.renderer)
    with pytest.raises(bridge.ToolsNotSupportedError, match="RoleColonRenderer"):
        both.generate(tools=[ADD])
    assert not both.client.asked


def test_a_system_message_of_the_config_is_given_once(tokenizer):
    # Inspect's Model.generate has put it into the messages by the time it calls the provider.
    messages = [ChatMessageSystem(content="Be brief."), USER]
    both = Both(tokenizer)
    both.generate(messages=messages, system_message="Be brief.")
    assert both.client.prompt.count("Be brief.") == 1
    both.generate("theirs", messages=messages, system_message="Be brief.")
    assert both.client.prompt.count("Be brief.") == 2


def test_the_tasks_own_stop_sequences(tokenizer):
    both = Both(tokenizer, "One. Two.\n\nQuestion: three. STOP")
    stops = ["STOP", "\n\nQuestion:"]
    assert both.generate(stop_seqs=stops).completion == "One. Two."
    assert "Question" in both.generate("theirs", stop_seqs=stops).completion


def test_what_is_not_text_is_refused(tokenizer):
    picture = ChatMessageUser(content=[ContentText(text="See:"), ContentImage(image="a.png")])
    both = Both(tokenizer)
    with pytest.raises(ValueError, match="text only, not image"):
        both.generate(messages=[picture])
    assert both.generate("theirs", messages=[picture]).completion == "Four."


def test_temperature(tokenizer):
    both = Both(tokenizer)
    both.generate()
    assert (both.client.params.temperature, both.client.params.max_tokens) == (0.0, 2048)
    both.generate("theirs")
    assert both.client.params.temperature == 1.0
    both.generate(temperature=0.7, max_tokens=5, seed=3)
    assert both.client.params.temperature == 0.7
    assert (both.client.params.max_tokens, both.client.params.seed) == (5, 3)
