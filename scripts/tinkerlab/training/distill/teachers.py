"""Teachers: who they are, and that they read the student's tokens as the student does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkerlab import service
from tinkerlab.errors import InputError
from tinkerlab.runs import checkpoints

if TYPE_CHECKING:
    import tinker


@dataclass(frozen=True)
class Teacher:
    """A teacher as the user wrote it, and what that came to.

    Attributes:
        model: a base model's name, or a ``tinker://`` path of sampler weights.
    """

    written: str
    model: str


def resolve_teacher(written: str, student: str, student_start: str | None) -> Teacher:
    """A base model, a sampler_weights path, or the newest sampler weights of a run folder.

    Args:
        student: the student's base model.
        student_start: the training state that the student begins from, if any.

    Raises:
        InputError: a path of training weights, a run folder without a checkpoint, or the
            student itself.
    """
    model = written
    if written.startswith("tinker://"):
        if "/sampler_weights/" not in written:
            raise InputError(
                f"teacher {written}: a teacher is sampled from; give the sampler_weights path"
                " (sampler_path in the run's checkpoints.jsonl)"
            )
    elif (folder := Path(written).expanduser()).is_dir() and not _is_model(folder):
        paths = [r.sampler_path for r in checkpoints.read(folder) if r.sampler_path]
        if not paths:
            raise InputError(f"teacher {written}: this folder records no sampler checkpoint")
        model = paths[-1]
    if model == student and student_start is None:
        raise InputError(f"teacher {written}: is the student itself; there is nothing to learn")
    return Teacher(written, model)


def _is_model(folder: Path) -> bool:
    return (folder / "tokenizer.json").is_file() or (folder / "tokenizer_config.json").is_file()


def open_teachers(
    connection: tinker.ServiceClient, teachers: Sequence[Teacher], student: str, tokenizer: Any
) -> list[tinker.SamplingClient]:
    """A sampling client of each teacher, which reads tokens as the student's tokenizer does.

    Raises:
        InputError: the service does not sample from it, or its tokenizer is another.
    """
    pending = [
        connection.create_sampling_client(model_path=teacher.model)
        if teacher.model.startswith("tinker://")
        else connection.create_sampling_client(base_model=teacher.model)
        for teacher in teachers
    ]
    clients = []
    for teacher, future in zip(teachers, pending, strict=True):
        try:
            client = future.result()
        except service.refusals() as error:
            raise InputError(
                f"the service does not sample from teacher {teacher.written}:"
                f" {service.brief(error)}"
            ) from None
        require_same_tokenizer(teacher.written, client.get_base_model(), student, tokenizer)
        clients.append(client)
    return clients


def require_same_tokenizer(written: str, base_model: str, student: str, tokenizer: Any) -> None:
    """Refuse a teacher that would read other words in the student's token ids.

    A KL between two distributions over different vocabularies has no meaning, and no request
    would fail: ids are in range, and the numbers look like any others.

    Raises:
        InputError: names a token that differs.
    """
    from tinkerlab.data import load_tokenizer

    if base_model == student:
        return
    theirs, ours = load_tokenizer(base_model).get_vocab(), tokenizer.get_vocab()
    if theirs == ours:
        return
    differing = sorted(
        (token for token in theirs.keys() | ours.keys() if theirs.get(token) != ours.get(token)),
        key=lambda token: ours.get(token, len(ours)),
    )
    token = differing[0]
    raise InputError(
        f"teacher {written} ({base_model}) has another tokenizer than {student}:"
        f" {len(differing):,} tokens differ, such as {token!r} ({theirs.get(token, 'none')} there,"
        f" {ours.get(token, 'none')} here); take a teacher of the student's family, or train on"
        " its texts with scripts/sl_trainer.py"
    )
