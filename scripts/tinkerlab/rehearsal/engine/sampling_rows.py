"""The running batch: rows that decode, in groups by width, with their adapters side by side."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from tinkerlab.rehearsal.engine.base import BaseModel
from tinkerlab.rehearsal.engine.cached_attention import CachedPass, cached_pass
from tinkerlab.rehearsal.engine.kv_cache import PromptKV, RowBuffers
from tinkerlab.rehearsal.engine.lora import use_adapters
from tinkerlab.rehearsal.engine.sampling_jobs import Job, Row, adapter_groups
from tinkerlab.rehearsal.engine.token_choice import Chooser

_NARROWEST = 512  # columns of the first group's buffers; the next ones are 4 times as wide


@dataclass(frozen=True)
class SamplerLimits:
    """How much runs at once.

    Attributes:
        rows: completions that decode together.
        cache_bytes: keys and values of running rows. Over it, the youngest rows give up their
            place and are run again later; one row alone may exceed it.
        idle_tokens, busy_tokens: prompt tokens to run between two decoding steps, when nothing
            decodes and when something does.
        long_prompt: a longer prompt is run in chunks of ``busy_tokens``.
        decode_share: time for decoding after each prompt pass, as a share of the pass's time.
    """

    rows: int = 128
    cache_bytes: int = 3 * 2**30
    idle_tokens: int = 4096
    busy_tokens: int = 512
    long_prompt: int = 1024
    decode_share: float = 0.5


class RowGroup:
    """Running rows that decode together, in consecutive rows of one set of buffers.

    The rows of one adapter stand next to each other, so that a pass has as few adapter groups
    as there are adapters. To keep it so, a row that joins or leaves moves at most one row of
    each other adapter.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.rows: list[Row] = []
        self._buffers = RowBuffers(width)
        self._chooser: Chooser | None = None

    @property
    def chooser(self) -> Chooser:
        if self._chooser is None:
            self._chooser = Chooser([row.rule for row in self.rows])
        return self._chooser

    def segments(self) -> list[tuple[int, int]]:
        """(first row, last row + 1) of each adapter, in order."""
        found: list[tuple[int, int]] = []
        for _, rows in groupby(self.rows, key=lambda row: id(row.job.adapter)):
            start = found[-1][1] if found else 0
            found.append((start, start + len(list(rows))))
        return found

    def join(self, row: Row, prompt: PromptKV) -> None:
        """Let a row in whose keys and values are ``prompt``."""
        self._buffers.reserve(len(self.rows) + 1, prompt)
        segments = self.segments()
        later: list[tuple[int, int]] = []  # segments behind the row's own; none for a new adapter
        for index, (start, _) in enumerate(segments):
            if self.rows[start].job.adapter is row.job.adapter:
                later = segments[index + 1 :]
        place = len(self.rows)
        self.rows.append(row)
        for start, _ in reversed(later):
            self._move(start, place)
            place = start
        self.rows[place] = row
        self._buffers.write(place, prompt)
        row.length = prompt.length
        self._chooser = None

    def leave(self, index: int, *, dirty: bool = False) -> None:
        """Let the row at ``index`` go; ``dirty`` if it may hold NaN."""
        if dirty:
            self._buffers.clear(index)
        hole = index
        for _, end in self.segments():
            if end <= index:
                continue
            if end - 1 != hole:
                self._move(end - 1, hole)
            hole = end - 1
        self.rows.pop()
        self._chooser = None

    def read(self, index: int) -> PromptKV:
        """The keys and values of a row: views that the next change makes void."""
        return self._buffers.read(index, self.rows[index].length)

    def _move(self, source: int, target: int) -> None:
        self._buffers.move(source, target, self.rows[source].length)
        self.rows[target] = self.rows[source]

    def step(self, base: BaseModel, start: int, end: int) -> Tensor:
        """Run the last token of the rows ``start`` to ``end``; logits ``[rows, vocabulary]``."""
        rows = self.rows[start:end]
        lengths = torch.tensor([row.length for row in rows])
        columns = int(lengths.max()) + 1
        tokens = torch.tensor([row.tokens[-1] for row in rows]).unsqueeze(-1)
        positions = lengths.unsqueeze(-1)
        description = CachedPass(positions, columns)
        with use_adapters(adapter_groups([row.job for row in rows])), cached_pass(description):
            hidden = base.hidden_states(
                tokens,
                position_ids=positions,
                attention_mask=description.placeholder,
                past_key_values=self._buffers.step(start, end, lengths, columns),
                use_cache=True,
            )
            return base.logits(hidden[:, -1]).float()


class RunningRows:
    """Every row that decodes or waits for a place to do so."""

    def __init__(self, limits: SamplerLimits) -> None:
        self._limits = limits
        self._ready: deque[tuple[Row, PromptKV]] = deque()
        self._groups: dict[int, RowGroup] = {}
        self._bytes_per_token = 0

    @property
    def active(self) -> int:
        """Rows in the batch."""
        return sum(len(group.rows) for group in self._groups.values())

    @property
    def waiting(self) -> int:
        """Rows whose prompt has run and that wait for a place."""
        return len(self._ready)

    @property
    def free(self) -> int:
        """Places that nobody has or waits for; negative if more wait than there are."""
        return self._limits.rows - self.active - len(self._ready)

    def groups(self) -> list[RowGroup]:
        """Groups with rows, the narrowest first."""
        return [group for _, group in sorted(self._groups.items()) if group.rows]

    def has_room(self, tokens: int, rows: int) -> bool:
        """Whether ``rows`` more rows with ``tokens`` columns in all fit into the budget."""
        running = self.active + len(self._ready)
        # Some columns to grow into, or the newcomers would be sent back after a few steps.
        needed = self._cached_tokens() + tokens + 32 * (running + rows)
        return needed * self._bytes_per_token <= self._limits.cache_bytes

    def add(self, row: Row, prompt: PromptKV) -> None:
        """Let a row wait for a place; ``prompt`` is what its prompt left."""
        if not self._bytes_per_token:
            self._bytes_per_token = prompt.bytes_per_token
        self._ready.append((row, prompt))

    def admit(self) -> list[Row]:
        """Let waiting rows in as far as there is room.

        Returns:
            the rows that had to give up their place instead (the budget is exceeded): those
            with the fewest tokens, whose second run costs least.
        """
        while self._ready and self.active < self._limits.rows:
            row, prompt = self._ready.popleft()
            if not row.job.over:
                self._group_for(prompt.length).join(row, prompt)
        sent_back: list[Row] = []
        while self.active > 1 and (
            self._cached_tokens() * self._bytes_per_token > self._limits.cache_bytes
        ):
            group, index = min(
                ((g, i) for g in self._groups.values() for i in range(len(g.rows))),
                key=lambda place: len(place[0].rows[place[1]].tokens),
            )
            sent_back.append(group.rows[index])
            group.leave(index)
        return sent_back

    def tidy(self, group: RowGroup) -> None:
        """Drop the rows that nobody wants any more; move those that outgrew the group."""
        for index in reversed(range(len(group.rows))):
            row = group.rows[index]
            if row.job.over:
                group.leave(index)
            elif row.length >= group.width:
                self._group_for(row.length).join(row, group.read(index))
                group.leave(index)

    def release(self) -> None:
        """Give the memory of empty groups back."""
        self._groups = {width: group for width, group in self._groups.items() if group.rows}

    def clear(self) -> list[Job]:
        """Forget every row; return their jobs."""
        jobs = [row.job for row, _ in self._ready]
        jobs.extend(row.job for group in self._groups.values() for row in group.rows)
        self._ready.clear()
        self._groups.clear()
        return jobs

    def _cached_tokens(self) -> int:
        running = sum(row.length for group in self._groups.values() for row in group.rows)
        return running + sum(prompt.length for _, prompt in self._ready)

    def _group_for(self, length: int) -> RowGroup:
        """The group whose buffers have a free column behind ``length`` columns.

        Groups of growing width keep a short row from attending over the columns of a long one,
        and from owning memory for them.
        """
        width = _NARROWEST
        while width <= length:
            width *= 4
        return self._groups.setdefault(width, RowGroup(width))
