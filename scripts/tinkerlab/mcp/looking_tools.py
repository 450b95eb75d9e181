"""Look before deciding: the environment, data, samples, evaluations."""

from __future__ import annotations

import time
from typing import Annotated, Any

from pydantic import Field

from tinkerlab.mcp.errors import Refusal
from tinkerlab.mcp.jobs import Job, expect, script, tinker_command
from tinkerlab.mcp.lab import Lab
from tinkerlab.mcp.sessions import Session
from tinkerlab.mcp.training_tools import SessionId
from tinkerlab.mcp.types import Outcome, Replies
from tinkerlab.mcp.workspace import SESSIONS, data_file, grader_spec, task_source
from tinkerlab.service import has_credential


class LookingTools:
    """The tools that change nothing."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    async def list_models(
        self,
        rehearse: Annotated[
            bool | None, Field(description="of the rehearsal; default: where there is no key")
        ] = None,
    ) -> dict[str, Any]:
        """Base models that can be trained: on the hosted service, or on the local rehearsal."""
        if self.lab.rehearse(rehearse):
            return {"rehearse": True, "models": list(self.lab.settings.rehearsal_models)}
        document = expect(await self._plain(tinker_command("model", "list"), rehearse=False))
        return {"rehearse": False, **document} if isinstance(document, dict) else {
            "rehearse": False, "models": document,
        }  # fmt: skip

    async def check_environment(self) -> dict[str, Any]:
        """Versions, credential, disk, and what the server works with. Asks no service."""
        outcome = await self._plain(script("doctor.py", "--offline", "--json"), rehearse=None)
        settings = self.lab.settings
        return {
            "workspace": str(settings.workspace),
            "sessions": str(settings.workspace / SESSIONS),
            "credential": has_credential(),
            "rehearsal_models": list(settings.rehearsal_models),
            "doctor": expect(outcome, (0, 1)),
        }

    async def inspect_dataset(
        self,
        data_file_path: Annotated[str, Field(description="JSON Lines in the workspace")],
        base_model: Annotated[str | None, Field(description="for its tokenizer")] = None,
    ) -> dict[str, Any]:
        """Read training data as the trainer will: bad lines, duplicates, tokens, examples.

        Example: inspect_dataset(data_file_path="chats.jsonl", base_model="Qwen/Qwen3-8B").
        """
        settings = self.lab.settings
        file = data_file(settings.workspace, data_file_path, settings.max_line_bytes)
        model = (f"--model={base_model}",) if base_model else ()
        command = script("check_data.py", "--data", str(file), *model, "--json")
        # Names of the rehearsal's own models are known without its running.
        return expect(await self._plain(command, rehearse=None), (0, 1))

    async def _plain(self, command: list[str], rehearse: bool | None) -> Any:
        """Run a command that belongs to no session."""
        import os

        workspace = self.lab.settings.workspace
        env = dict(os.environ) if rehearse is None else await self.lab.backend.environment(rehearse)
        return await Job(command, env, workspace, workspace / SESSIONS / "server.log").run()

    async def sample(
        self,
        session_id: SessionId,
        prompts: Annotated[list[str], Field(min_length=1, max_length=64)],
        max_tokens: Annotated[int, Field(ge=1, le=32_768)] = 256,
        temperature: Annotated[float, Field(ge=0, le=2)] = 0.0,
        checkpoint: Annotated[
            str | None, Field(description="a name of list_checkpoints; default: the newest")
        ] = None,
        system_prompt: str | None = None,
    ) -> Replies:
        """What the trained model answers to your prompts, beside the base model's answers.

        Example: sample(session_id="sft-...", prompts=["Who are you?"]).
        """
        words = [f"--prompt={prompt}" for prompt in prompts]  # which may begin with a dash
        return await self._compare(
            session_id, words, len(prompts), max_tokens, temperature, checkpoint, system_prompt
        )

    async def compare_with_base(
        self,
        session_id: SessionId,
        limit: Annotated[int, Field(ge=1, le=200)] = 8,
        max_tokens: Annotated[int, Field(ge=1, le=32_768)] = 256,
        checkpoint: str | None = None,
    ) -> Replies:
        """Base against trained model on prompts that the session held out. Read them.

        Example: compare_with_base(session_id="sft-...", limit=5).
        """
        return await self._compare(session_id, [], limit, max_tokens, 0.0, checkpoint, None)

    async def _compare(
        self,
        session_id: str,
        words: list[str],
        limit: int,
        max_tokens: int,
        temperature: float,
        checkpoint: str | None,
        system_prompt: str | None,
    ) -> Replies:
        async with self.lab.hold(session_id, "sampling") as session:
            require_checkpoint(session)
            named = ("--checkpoint", sampler_path(session, checkpoint)) if checkpoint else ()
            told = (f"--system-prompt={system_prompt}",) if system_prompt else ()
            command = script(
                "checkpoint_compare.py", "--run", str(session.run), *words, *named, *told,
                "--limit", str(limit), "--max-tokens", str(max_tokens), "--temperature",
                str(temperature), "--json",
            )  # fmt: skip
            document = expect(await self.lab.run(session, command, "sampling"))
        return Replies(
            session_id=session_id,
            models=document["models"],
            prompts=document["prompts"],
            facts=document["facts"],
        )

    async def evaluate(
        self,
        session_id: SessionId,
        dataset: Annotated[
            str | None,
            Field(description="tasks; default: what the session held out (sft: scores their NLL)"),
        ] = None,
        grader: Annotated[
            str | None, Field(description="exact, numeric, contains, math, regex:..., ...")
        ] = None,
        limit: Annotated[int | None, Field(ge=1)] = None,
        max_tokens: Annotated[int, Field(ge=1)] = 256,
    ) -> Outcome:
        """Base against trained model on the same items, with a 95 % interval.

        Without a dataset: the held-out rows (sft) or held-out tasks with the session's own reward
        (grpo). Example: evaluate(session_id="sft-...", dataset="questions.jsonl", grader="exact").
        """
        async with self.lab.hold(session_id, "evaluating") as session:
            require_checkpoint(session)
            stamp = time.strftime("%H%M%S")
            output = session.folder / "evaluations" / f"step-{session.steps}-{stamp}"
            if session.method == "sft" and dataset is None:
                command = script(
                    "evaluate.py", "nll", "--run", str(session.run), "--output", str(output),
                    "--json",
                )  # fmt: skip
            else:
                command = script(
                    "eval_offline.py", "--run", str(session.run), "--output", str(output),
                    "--max-tokens", str(max_tokens), "--json", *self._tasks(dataset, grader, limit),
                )  # fmt: skip
            document = expect(await self.lab.run(session, command, "evaluation"))
        return Outcome(session_id=session_id, folder=str(output), document=document)

    def _tasks(self, dataset: str | None, grader: str | None, limit: int | None) -> list[str]:
        words: list[str] = []
        settings = self.lab.settings
        if dataset is not None:
            source = task_source(settings.workspace, dataset, settings.max_line_bytes)
            words.append(f"--data={source}")
        if grader is not None:
            words.append(f"--grader={grader_spec(settings.workspace, grader)}")
        return words + (["--limit", str(limit)] if limit else [])


def require_checkpoint(session: Session) -> None:
    """Refuse what needs trained weights before there are any.

    Raises:
        Refusal: no step was trained yet.
    """
    if not session.checkpoints:
        raise Refusal(
            "bad_input",
            f"session {session.id} has no checkpoint yet",
            f"train_{session.method}_step first",
        )


def checkpoint_row(session: Session, name: str) -> dict[str, Any]:
    """The checkpoint of this name, as ``list_checkpoints`` or ``save`` named it.

    Raises:
        Refusal: there is none.
    """
    if name in session.saved:
        return session.saved[name]
    for row in reversed(session.checkpoints):
        if row["name"] == name:
            return row
    known = [row["name"] for row in session.checkpoints] + list(session.saved)
    raise Refusal(
        "bad_input",
        f"session {session.id} has no checkpoint {name!r}",
        f"checkpoints: {', '.join(known)}",
    )


def sampler_path(session: Session, name: str) -> str:
    return str(checkpoint_row(session, name)["sampler_path"])
