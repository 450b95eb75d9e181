"""One agent's job: everything that is known before anything is made, then the work itself."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tinkerlab import cli
from tinkerlab.agents import secrets, setup, task
from tinkerlab.agents.clis import AGENTS, AgentCLI
from tinkerlab.agents.events import Transcript, one_line
from tinkerlab.agents.outcome import Outcome, outcome_of
from tinkerlab.agents.process import AgentProcess
from tinkerlab.errors import InputError
from tinkerlab.folders import make_folder
from tinkerlab.runs import jsonl

LOGS = ".agent"
TASK, OUTCOME = "task.md", "outcome.json"
TINKER_KEY = "TINKER_API_KEY"


@dataclass(frozen=True)
class Job:
    """What is to be done, where, and by whom.

    Attributes:
        recipe, prompt: the task: a recipe's name, or a file; one of them.
        model: the base model to train; None for the task's own.
        secrets: names of variables that the agent gets.
        options: for the agent's own command line.
    """

    workdir: Path
    agent_name: str
    recipe: str | None
    prompt: Path | None
    model: str | None
    secrets: Sequence[str]
    time_limit: float
    max_turns: int | None
    options: Sequence[str] = ()

    @property
    def agent(self) -> AgentCLI:
        return AGENTS[self.agent_name]

    @property
    def logs(self) -> Path:
        return self.workdir / LOGS

    @property
    def hosted(self) -> bool:
        """Whether it gets a key for the service; otherwise it rehearses."""
        return TINKER_KEY in self.secrets

    def command(self) -> list[str]:
        """The agent's command.

        Raises:
            InputError: a limit that this agent does not have.
        """
        return self.agent.command(self.max_turns, self.options)

    def shown(self) -> str:
        """The command, to be run in ``workdir``, as a shell takes it."""
        return f"{shlex.join(self.command())} < {LOGS}/{TASK}"

    def file(self) -> Path:
        """The task's file.

        Raises:
            InputError: no such recipe.
        """
        if self.recipe is not None:
            return task.recipe_file(self.recipe)
        assert self.prompt is not None
        return self.prompt

    def parts(self) -> list[setup.Part]:
        """The set-up, looked at, but for the agent's CLI."""
        return [
            setup.workspace(self.workdir),
            setup.task_text(self.file),
            *setup.named_secrets(self.secrets),
        ]

    def require_ready(self) -> dict[str, str]:
        """The secrets by name.

        Raises:
            InputError: one of ``parts`` is missing.
        """
        for part in (setup.workspace(self.workdir), setup.task_text(self.file)):
            if not part.ok:
                raise InputError(part.detail)
        return secrets.collect(self.secrets)

    def work(self, values: Mapping[str, str]) -> Outcome:
        """Start the agent, show what it does on stderr, and judge what it left.

        Args:
            values: the secrets by name.

        Raises:
            InputError: no such CLI.
        """
        env = secrets.agent_environment(values)
        executable = shutil.which(self.agent.executable, path=env["PATH"])
        if executable is None:
            raise InputError(f"no {self.agent.executable} on PATH; {self.agent.get}")
        text = task.Task(
            text=task.read(self.file()),
            model=self.model,
            hosted=self.hosted,
            minutes=self.time_limit / 60,
        ).prompt(self.agent_name)
        redactor = secrets.Redactor(values)
        make_folder(self.logs, "--workdir")
        file = self.logs / TASK
        jsonl.write_atomically(file, redactor(text).encode("utf-8", "backslashreplace"))
        cli.say(redactor(f"$ {self.shown()}"))

        transcript = Transcript()

        def heard(line: str) -> None:
            for shown in transcript.read(line):
                cli.say(shown)

        def said(line: str) -> None:
            if line.strip():
                cli.say(f"({self.agent_name}) {one_line(line)}")

        process = AgentProcess(self.logs, redactor, heard, said)
        command = [str(Path(executable).absolute()), *self.command()[1:]]
        ended = process.run(command, file, self.workdir, env, self.time_limit)
        found = outcome_of(
            self.agent_name, self.workdir, self.logs, transcript, ended, self.time_limit
        )
        make_folder(self.logs, "--workdir")  # the agent may have cleaned up too well
        text = cli.redact(json.dumps(found.document(), indent=2))
        jsonl.write_atomically(self.logs / OUTCOME, f"{text}\n".encode())
        return found
