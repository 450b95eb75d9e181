"""What tools give back."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field


class Checkpoint(BaseModel):
    """A point that training can go on from, and that can be sampled."""

    name: str
    step: int = Field(description="updates in the weights")
    state_path: str | None = None
    sampler_path: str | None = None
    saved_as: list[str] = Field(default_factory=list, description="names given by save")


class SessionStatus(BaseModel):
    """Where a session stands."""

    session_id: str
    method: str
    base_model: str
    rehearse: bool
    state: str = Field(description="idle, training, complete or finished")
    step: int = Field(description="steps that the newest checkpoint holds")
    total_steps: int
    last_metrics: dict[str, float] = Field(default_factory=dict)
    held_out: list[tuple[int, float]] = Field(
        default_factory=list, description="(step, value) of the held-out figure"
    )
    kept: Checkpoint | None = None
    folder: str
    next: str = Field(description="what to do next")


class Begun(BaseModel):
    """A new session."""

    session_id: str
    folder: str
    resolved: dict[str, Any] = Field(description="what the settings and the data come to")
    checks: dict[str, Any] = Field(description="the data report, or the pre-flight of the reward")
    reward_validation: list[dict[str, Any]] | None = None
    next: str


class Trained(BaseModel):
    """What some steps did."""

    session_id: str
    state: str
    step: int
    total_steps: int
    steps_done: int
    metrics: dict[str, float] = Field(description="of the last step")
    held_out: list[tuple[int, float]] = Field(default_factory=list)
    mixed_groups: float | None = Field(None, description="grpo: share of groups with signal")
    completions: list[dict[str, Any]] = Field(
        default_factory=list, description="grpo: a few completions of the last step, with rewards"
    )
    checkpoint: Checkpoint | None = None
    kept: Checkpoint | None = None
    advice: list[str] = Field(default_factory=list)


class Replies(BaseModel):
    """Replies to prompts, by model."""

    session_id: str
    models: dict[str, str]
    prompts: list[dict[str, Any]]
    facts: dict[str, Any]


class Outcome(BaseModel):
    """The document of a longer job."""

    session_id: str
    folder: str
    document: dict[str, Any]


class Finished(BaseModel):
    """The end of a session."""

    session_id: str
    results: str
    report: str | None
    valid: bool = Field(description="whether check_results.py accepts the folder")
    findings: list[dict[str, Any]]
    summary: dict[str, Any]
