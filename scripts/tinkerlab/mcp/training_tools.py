"""Begin a session, train some steps, see where it stands, stop it."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from pathlib import Path
from typing import Annotated, Any

from mcp.server.mcpserver import Context
from pydantic import Field

from tinkerlab.mcp import configs, figures
from tinkerlab.mcp.errors import Refusal
from tinkerlab.mcp.jobs import expect, script, tinker_command
from tinkerlab.mcp.lab import Lab, plain_numbers
from tinkerlab.mcp.sessions import TRAINERS, Method, Session
from tinkerlab.mcp.types import Begun, Checkpoint, SessionStatus, Trained
from tinkerlab.mcp.workspace import data_file, grader_spec, task_source
from tinkerlab.runs import jsonl

SessionId = Annotated[str, Field(description="as init_sft or init_grpo gave it")]
Rehearse = Annotated[
    bool | None,
    Field(description="true: a local service, no key; default: only where there is no key"),
]


class TrainingTools:
    """The tools that train."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    async def init_sft(
        self,
        data_file_path: Annotated[
            str, Field(description='JSON Lines of {"messages": [...]} or {"prompt", "completion"}')
        ],
        base_model: Annotated[str, Field(description="as list_models names it")],
        name: str = "sft",
        total_steps: Annotated[int, Field(ge=1, le=100_000)] = 200,
        learning_rate: Annotated[
            float | None, Field(description="default: the family's formula", gt=0)
        ] = None,
        lora_rank: Annotated[int, Field(ge=1, le=512)] = 32,
        batch_size: Annotated[int, Field(ge=1, description="examples")] = 8,
        max_seq_len: Annotated[int, Field(ge=8)] = 2048,
        eval_every: Annotated[int, Field(ge=0)] = 10,
        val_file_path: str | None = None,
        rehearse: Rehearse = None,
    ) -> Begun:
        """Begin supervised fine-tuning on conversations or prompt-completion pairs.

        Checks data and settings without training. total_steps only bounds the session; train as
        many as the held-out NLL asks for. Example: init_sft(data_file_path="chats.jsonl",
        base_model="Qwen/Qwen3-8B"), then train_sft_step.
        """
        train = self._data(data_file_path)
        settings: dict[str, Any] = {
            "train_file": str(train),
            "val_file": str(self._data(val_file_path)) if val_file_path else None,
            "learning_rate": learning_rate or "auto",
            "lora_rank": lora_rank,
            "train_batch_size": batch_size,
            "max_seq_len": max_seq_len,
            "eval_every": eval_every,
            "save_every": 20,
            "submit_ahead": 1,
        }
        return await self._begin("sft", name, base_model, total_steps, settings, rehearse)

    async def init_grpo(
        self,
        dataset: Annotated[
            str,
            Field(description='JSON Lines of {"prompt", "answer"}, reasoning_gym:NAME or hf:NAME'),
        ],
        base_model: Annotated[str, Field(description="as list_models names it")],
        reward: Annotated[
            str | None, Field(description="exact, numeric, math, contains, code_tests, ...")
        ] = None,
        reward_code: Annotated[
            str | None,
            Field(description="or Python with def score(completion, answer) -> float"),
        ] = None,
        reward_examples: Annotated[
            list[dict[str, Any]] | None,
            Field(description='tried first: {"completion", "answer", "expected": score}'),
        ] = None,
        name: str = "grpo",
        total_steps: Annotated[int, Field(ge=1, le=100_000)] = 200,
        learning_rate: Annotated[float | None, Field(gt=0)] = 4e-5,
        lora_rank: Annotated[int, Field(ge=1, le=512)] = 32,
        groups_per_batch: Annotated[int, Field(ge=1)] = 8,
        group_size: Annotated[int, Field(ge=2)] = 8,
        max_tokens: Annotated[int, Field(ge=1)] = 256,
        system_prompt: str | None = None,
        eval_every: Annotated[int, Field(ge=0)] = 10,
        max_eval_tasks: Annotated[int, Field(ge=0)] = 50,
        rehearse: Rehearse = None,
    ) -> Begun:
        """Begin reinforcement learning (GRPO) on tasks with a verifier or reward code of yours.

        Samples and grades the starting policy and refuses where no group has signal. Reward code
        runs in another process with limits; give two or more reward_examples, one of them wrong.
        Example: init_grpo(dataset="reasoning_gym:chain_sum", reward="numeric", ...).
        """
        if (reward is None) == (reward_code is None):
            raise Refusal(
                "bad_input", "give reward or reward_code, one of them", "numeric, for instance"
            )
        lab = self.lab.settings
        source = task_source(lab.workspace, dataset, lab.max_line_bytes)
        settings: dict[str, Any] = {
            "dataset": source,
            "reward": grader_spec(lab.workspace, reward) if reward is not None else None,
            "learning_rate": learning_rate or "auto",
            "lora_rank": lora_rank,
            "groups_per_batch": groups_per_batch,
            "group_size": group_size,
            "max_tokens": max_tokens,
            "system_prompt": system_prompt,
            "eval_every": eval_every,
            "max_eval_tasks": max_eval_tasks,
            "save_every": 5,
            "remove_constant_reward_groups": True,
        }
        return await self._begin(
            "grpo", name, base_model, total_steps, settings, rehearse, reward_code, reward_examples
        )

    def _data(self, given: str) -> Path:
        settings = self.lab.settings
        return data_file(settings.workspace, given, settings.max_line_bytes)

    async def _begin(
        self,
        method: Method,
        name: str,
        base_model: str,
        total_steps: int,
        settings: dict[str, Any],
        rehearse: bool | None,
        reward_code: str | None = None,
        examples: list[dict[str, Any]] | None = None,
    ) -> Begun:
        session_id, folder = self.lab.sessions.new_folder(name)
        session = Session(
            id=session_id,
            folder=folder,
            method=method,
            base_model=base_model,
            rehearse=self.lab.rehearse(rehearse),
            created=time.strftime("%Y-%m-%dT%H:%M:%S"),
            total_steps=total_steps,
        )
        validation = None
        try:
            if reward_code is not None:
                settings["reward"] = configs.write_reward(folder, reward_code)
            if reward_code is not None or examples:
                validation = await asyncio.to_thread(
                    configs.try_reward, settings["reward"], examples or []
                )
                content = json.dumps(validation, indent=2, default=str).encode() + b"\n"
                jsonl.write_atomically(folder / "reward_validation.json", content)
            configs.write(session, settings)
            command = script(
                TRAINERS[method], "--config", str(session.config), "--dry-run", "--json"
            )
            outcome = await self.lab.run(session, command, "init")
            if outcome.code == 1 and outcome.document is not None:
                raise Refusal(
                    "not_worth_training",
                    outcome.message,
                    "easier or other tasks, a longer max_tokens, or SFT first",
                )
            document = expect(outcome)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        session.write()
        checks = document.pop("data", None) or document.pop("preflight", None) or {}
        return Begun(
            session_id=session_id,
            folder=str(folder),
            resolved=document,
            checks=checks,
            reward_validation=validation,
            next=f"train_{method}_step(session_id={session_id!r}, steps=10)",
        )

    async def train_sft_step(
        self,
        session_id: SessionId,
        ctx: Context,
        steps: Annotated[int, Field(ge=1, le=10_000)] = 10,
    ) -> Trained:
        """Train some steps of a supervised session; saved at the end, so nothing is lost.

        Progress is reported while it trains. Look at metrics and held_out, sample, then decide.
        Example: train_sft_step(session_id="sft-...", steps=20).
        """
        return await self._train("sft", session_id, steps, ctx)

    async def train_grpo_step(
        self,
        session_id: SessionId,
        ctx: Context,
        steps: Annotated[int, Field(ge=1, le=10_000)] = 5,
    ) -> Trained:
        """Train some steps of a reward session; saved at the end, so nothing is lost.

        Read mixed_groups (share of groups with signal) and the completions, not only the reward.
        Example: train_grpo_step(session_id="grpo-...", steps=5).
        """
        return await self._train("grpo", session_id, steps, ctx)

    async def _train(self, method: Method, session_id: str, steps: int, ctx: Context) -> Trained:
        async with self.lab.hold(session_id, f"training {steps} steps") as session:
            if session.method != method:
                raise Refusal(
                    "bad_input",
                    f"session {session_id} is of method {session.method}",
                    f"call train_{session.method}_step",
                )
            if session.finished:
                raise Refusal(
                    "bad_input", f"session {session_id} is finished", "load one of its checkpoints"
                )
            first = session.steps
            target = min(first + steps, session.total_steps)
            command = script(
                TRAINERS[method], "--config", str(session.config), "--until-step", str(target),
                "--json",
            )  # fmt: skip

            told = first

            async def tell() -> None:
                nonlocal told
                rows = session.rows
                done = sum(1 for row in rows if figures.TRAIN[method] in row)
                if done > told:
                    told = done
                    value = plain_numbers(rows[-1]).get(figures.TRAIN[method])
                    said = f"step {done}/{target}"
                    said += "" if value is None else f" {figures.TRAIN[method]} {value:.4f}"
                    await ctx.report_progress(done - first, target - first, said)

            outcome = await self.lab.run(session, command, "training", tell)
            # 2: it never began, whatever the trainer of a cancelled call did meanwhile.
            if outcome.code in (0, 2) or session.steps == first:
                expect(outcome)
            await self._keep(session)
            trained = _trained(session, first)
            if outcome.code != 0:
                # Stopped, or failed after a checkpoint: what was done is told, and why no more.
                trained.advice.insert(
                    0, f"ended at step {trained.step} of {target}: {outcome.message}"
                )
            return trained

    async def _keep(self, session: Session) -> None:
        """Keep the first checkpoint at which the reward had passed the threshold."""
        settings = self.lab.settings
        if session.method != "grpo" or session.kept is not None:
            return
        passed = [
            step + 1
            for step, reward in figures.curve(session.rows, figures.TRAIN["grpo"])
            if reward >= settings.keep_reward and step + 1 >= settings.keep_after
        ]
        found = next((c for c in session.checkpoints if passed and c["step"] >= passed[0]), None)
        if found is not None:
            await self.make_permanent(session, found)
            session.kept = found
            session.write()

    async def make_permanent(self, session: Session, row: dict[str, Any]) -> None:
        """Take the end of its life from a checkpoint.

        Raises:
            Refusal: the service refuses.
        """
        for key in ("state_path", "sampler_path"):
            if row.get(key) and not row.get("final"):
                command = tinker_command("checkpoint", "set-ttl", str(row[key]), "--remove")
                outcome = await self.lab.run(session, command, "training")
                if outcome.code != 0:
                    raise Refusal("service_failed", outcome.message, "try again")

    async def status(
        self,
        session_id: Annotated[
            str | None, Field(description="one session; default: all of the workspace")
        ] = None,
    ) -> list[SessionStatus]:
        """Where one session, or every session of this workspace, stands. Answers at once.

        Also after a restart of the server: sessions live on the disk.
        """
        chosen = [self.lab.sessions.get(session_id)] if session_id else list(self.lab.sessions)
        return [self._status(session) for session in chosen]

    def _status(self, session: Session) -> SessionStatus:
        doing = self.lab.doing(session.id)
        rows, step = session.rows, session.steps
        complete = step >= session.total_steps
        state = "finished" if session.finished else "complete" if complete else "idle"
        following = "finish" if complete else f"train_{session.method}_step, sample, or finish"
        return SessionStatus(
            session_id=session.id,
            method=session.method,
            base_model=session.base_model,
            rehearse=session.rehearse,
            state=doing or state,
            step=step,
            total_steps=session.total_steps,
            last_metrics=plain_numbers(rows[-1]) if rows else {},
            held_out=figures.held_out(session),
            kept=Checkpoint(**_known(session.kept)) if session.kept else None,
            folder=str(session.folder),
            next="wait, or stop" if doing else following,
        )

    async def stop(self, session_id: SessionId) -> SessionStatus:
        """Stop what is going on in a session; a trainer saves before it ends."""
        session = self.lab.sessions.get(session_id)
        if not await self.lab.stop(session_id):
            raise Refusal("bad_input", f"nothing is going on in session {session_id}", "see status")
        return self._status(session)


def _trained(session: Session, first: int) -> Trained:
    rows = session.rows
    last = next((row for row in reversed(rows) if figures.TRAIN[session.method] in row), {})
    newest = session.checkpoints[-1] if session.checkpoints else None
    step = session.steps
    return Trained(
        session_id=session.id,
        state="complete" if step >= session.total_steps else "idle",
        step=step,
        total_steps=session.total_steps,
        steps_done=step - first,
        metrics=plain_numbers(last),
        held_out=figures.held_out(session),
        mixed_groups=last.get(figures.MIXED),
        completions=figures.completions(session) if session.method == "grpo" else [],
        checkpoint=Checkpoint(**_known(newest)) if newest else None,
        kept=Checkpoint(**_known(session.kept)) if session.kept else None,
        advice=figures.advice(session),
    )


def _known(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in ("name", "step", "state_path", "sampler_path") if key in row}
