"""Tasks in Inspect's own words, each the smallest that shows one thing. The tests copy this file."""

import os

from inspect_ai import Epochs, Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessageSystem, ChatMessageUser, GenerateConfig
from inspect_ai.scorer import Score, accuracy, choice, match, mean, model_graded_qa, scorer
from inspect_ai.solver import generate, multiple_choice, solver, use_tools
from inspect_ai.tool import ToolError, tool

SUMS = [
    Sample(id=f"sum-{i}", input=f"What is {i} plus 1?", target=str(i + 1), metadata={"i": i})
    for i in range(6)
]


@scorer(metrics=[accuracy()])
def even():
    """Right where the reply has an even number of characters: about half, for any model."""

    async def score(state, target):
        text = state.output.completion
        return Score(value="C" if len(text) % 2 == 0 else "I", answer=str(len(text)))

    return score


@task
def sums(length: int = 6):
    return Task(dataset=MemoryDataset(SUMS[:length]), solver=generate(), scorer=even())


@task
def exact():
    return Task(dataset=MemoryDataset(SUMS), solver=generate(), scorer=match())


@task
def colours():
    samples = [
        Sample(input="Which is a colour?", choices=["Table", "Blue", "Seven"], target="B"),
        Sample(input="Which is a number?", choices=["Nine", "Red", "Chair"], target="A"),
    ]
    return Task(dataset=MemoryDataset(samples), solver=multiple_choice(), scorer=choice())


@tool
def add():
    async def execute(x: int, y: int):
        """Add two numbers.

        Args:
            x: One of them.
            y: The other.
        """
        if x < 0:
            raise ToolError("negative numbers are not for me")
        return str(x + y)

    return execute


@task
def calculator():
    return Task(
        dataset=MemoryDataset(SUMS[:2]), solver=[use_tools(add()), generate()], scorer=even()
    )


@scorer(metrics=[mean()])
def letters():
    """The share of letters in the reply."""

    async def score(state, target):
        text = state.output.completion
        return Score(value=sum(c.isalpha() for c in text) / max(len(text), 1))

    return score


@task
def share():
    return Task(
        dataset=MemoryDataset(SUMS),
        solver=generate(),
        scorer=letters(),
        epochs=Epochs(2),
        config=GenerateConfig(temperature=1.0),
    )


@scorer(metrics={"even": [accuracy()], "length": [mean()]})
def several():
    async def score(state, target):
        text = state.output.completion
        return Score(value={"even": len(text) % 2 == 0, "length": len(text)})

    return score


@task
def many_values():
    return Task(dataset=MemoryDataset(SUMS), solver=generate(), scorer=several())


@task
def two_scorers():
    return Task(dataset=MemoryDataset(SUMS), solver=generate(), scorer=[even(), match()])


@scorer(metrics=[mean()])
def length():
    async def score(state, target):
        return Score(value=len(state.output.completion))

    return score


@task
def too_large():
    return Task(dataset=MemoryDataset(SUMS), solver=generate(), scorer=length())


@scorer(metrics=[accuracy()])
def now_and_then():
    async def score(state, target):
        if state.metadata["i"] == 2:
            return Score.unscored(reason="grader_failed", explanation="no verdict")
        return Score(value="C")

    return score


@task
def unscored():
    return Task(dataset=MemoryDataset(SUMS), solver=generate(), scorer=now_and_then())


@solver
def failing():
    """Fails, or ends the whole process, at one sample for as long as the environment says so."""

    async def solve(state, generate):
        if "TRACE" in os.environ:
            with open(os.environ["TRACE"], "a") as trace:
                trace.write(f"{state.sample_id}\n")
        if state.metadata["i"] == int(os.environ.get("FAIL_AT", "-1")):
            raise RuntimeError("the tool broke")
        if state.metadata["i"] == int(os.environ.get("END_AT", "-1")):
            os.kill(os.getpid(), int(os.environ["END_WITH"]))
        return await generate(state)

    return solve


@task
def fragile():
    return Task(dataset=MemoryDataset(SUMS), solver=failing(), scorer=even())


@task
def conversation():
    messages = [ChatMessageSystem(content="Be brief."), ChatMessageUser(content="Say hello.")]
    return Task(
        dataset=MemoryDataset([Sample(input=messages, target=["hello", "hi"])]),
        solver=generate(),
        scorer=even(),
    )


@task
def graded():
    return Task(dataset=MemoryDataset(SUMS[:2]), solver=generate(), scorer=model_graded_qa())


@task
def on_this_machine():
    return Task(dataset=MemoryDataset(SUMS), solver=generate(), scorer=even(), sandbox="local")


@task
def one_sample_here():
    sample = Sample(input="Write code.", target="", sandbox="local")
    return Task(dataset=MemoryDataset([sample]), solver=generate(), scorer=even())


@task
def in_docker():
    return Task(dataset=MemoryDataset(SUMS), solver=generate(), scorer=even(), sandbox="docker")


@task
def nothing():
    return Task(dataset=MemoryDataset([]), solver=generate(), scorer=even())
