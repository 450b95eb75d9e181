"""Keep, branch, export, finish."""

from __future__ import annotations

import shutil
import time
from typing import Annotated, Any

import yaml
from pydantic import Field

from tinkerlab.mcp.errors import Refusal
from tinkerlab.mcp.jobs import expect, script
from tinkerlab.mcp.lab import Lab
from tinkerlab.mcp.looking_tools import checkpoint_row, require_checkpoint
from tinkerlab.mcp.sessions import Session
from tinkerlab.mcp.training_tools import SessionId, TrainingTools
from tinkerlab.mcp.types import Begun, Checkpoint, Finished, Outcome
from tinkerlab.runs import checkpoints as checkpoint_files
from tinkerlab.runs import jsonl, metrics


class WeightsTools:
    """The tools about what training made."""

    def __init__(self, lab: Lab, training: TrainingTools) -> None:
        self.lab = lab
        self._training = training

    async def list_checkpoints(self, session_id: SessionId) -> list[Checkpoint]:
        """The checkpoints of a session, oldest first, with the names that save gave."""
        session = self.lab.sessions.get(session_id)
        return [_checkpoint(session, row) for row in session.checkpoints]

    async def save(
        self,
        session_id: SessionId,
        name: Annotated[str, Field(pattern=r"^[\w.-]{1,64}$", description="yours to choose")],
    ) -> Checkpoint:
        """Name the newest checkpoint and keep it for good (others expire after 7 days).

        Example: save(session_id="sft-...", name="before-longer-replies").
        """
        async with self.lab.hold(session_id, "saving") as session:
            require_checkpoint(session)
            if name in session.saved:
                raise Refusal(
                    "bad_input", f"{name!r} is taken in session {session_id}", "another name"
                )
            row = session.checkpoints[-1]
            await self._training.make_permanent(session, row)
            session.saved[name] = row
            session.write()
            return _checkpoint(session, row)

    async def load(
        self,
        session_id: SessionId,
        checkpoint: Annotated[str, Field(description="a name of list_checkpoints or of save")],
        name: str = "branch",
    ) -> Begun:
        """Go on from an earlier checkpoint, in a new session; the old one stays as it is.

        Same settings and data; what came after the checkpoint is not in the new session.
        Example: load(session_id="sft-...", checkpoint="000020").
        """
        async with self.lab.hold(session_id, "loading") as session:
            row = checkpoint_row(session, checkpoint)
            new_id, folder = self.lab.sessions.new_folder(name)
            branch = Session(
                id=new_id,
                folder=folder,
                method=session.method,
                base_model=session.base_model,
                rehearse=session.rehearse,
                created=time.strftime("%Y-%m-%dT%H:%M:%S"),
                total_steps=session.total_steps,
            )
            _copy(session, branch, int(row["step"]))
            branch.write()
        return Begun(
            session_id=new_id,
            folder=str(folder),
            resolved={"step": row["step"], "branched_from": session_id},
            checks={},
            next=f"train_{branch.method}_step(session_id={new_id!r})",
        )

    async def export(self, session_id: SessionId) -> Outcome:
        """Build a PEFT adapter and a merged model of the newest checkpoint, and prove them.

        The document says good or not; tensors and log-probabilities are compared.
        """
        async with self.lab.hold(session_id, "exporting") as session:
            require_checkpoint(session)
            output = session.folder / "exported"
            again = ("--overwrite",) if output.exists() else ()
            command = script(
                "export_model.py", "--run", str(session.run), "--output", str(output), "--json",
                *again,
            )  # fmt: skip
            document = expect(await self.lab.run(session, command, "export"), (0, 1))
        return Outcome(session_id=session_id, folder=str(output), document=document)

    async def finish(self, session_id: SessionId) -> Finished:
        """Evaluate base and trained model on the held-out items, write results/ and the report.

        The end of a session: its newest checkpoint is kept for good.
        """
        async with self.lab.hold(session_id, "finishing") as session:
            require_checkpoint(session)
            await self._training.make_permanent(session, session.checkpoints[-1])
            results = session.folder / "results"
            kind = ("evaluate.py", "nll") if session.method == "sft" else ("eval_offline.py",)
            command = script(
                *kind, "--run", str(session.run), "--output", str(results), "--overwrite", "--json"
            )
            summary = expect(await self.lab.run(session, command, "evaluation"))
            check = await self.lab.run(
                session, script("check_results.py", str(results), "--json"), "evaluation"
            )
            verdict = expect(check, (0, 1))
            report = session.folder / "report.html"
            made = await self.lab.run(
                session,
                script("report.py", str(results), "--output", str(report), "--json"),
                "evaluation",
            )
            session.finished = True
            session.write()
        return Finished(
            session_id=session_id,
            results=str(results),
            report=str(report) if made.code == 0 else None,
            valid=check.code == 0,
            findings=verdict.get("findings", []),
            summary=summary,
        )


def _checkpoint(session: Session, row: dict[str, Any]) -> Checkpoint:
    names = [name for name, saved in session.saved.items() if saved["step"] == row["step"]]
    return Checkpoint(
        name=row["name"],
        step=row["step"],
        state_path=row.get("state_path"),
        sampler_path=row.get("sampler_path"),
        saved_as=names,
    )


def _copy(session: Session, branch: Session, step: int) -> None:
    """The run up to ``step`` in the branch's folder, as if it had been interrupted there."""
    shutil.copytree(
        session.run, branch.run, ignore=shutil.ignore_patterns(".lock", "results", "*.log")
    )
    kept = [row for row in checkpoint_files.read_rows(session.run) if row["step"] <= step]
    jsonl.rewrite(
        branch.run / checkpoint_files.FILE_NAME, [{**row, "final": False} for row in kept]
    )
    metrics.keep_before(branch.run, step)
    rollouts = branch.run / "rollouts.jsonl"
    if rollouts.exists():
        rows = [row for row in jsonl.read(rollouts) if row.get("step", 0) < step]
        jsonl.rewrite(rollouts, rows)
    settings = yaml.safe_load(session.config.read_text(encoding="utf-8"))
    settings |= {"run_name": branch.id, "log_path": str(branch.run)}
    reward = session.folder / "reward.py"
    if reward.exists():
        shutil.copy2(reward, branch.folder / "reward.py")
    branch.config.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
