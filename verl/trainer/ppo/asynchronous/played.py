"""What a `GroupStream` keeps: episodes of groups, what steps have taken, and tasks that were drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from verl.trainer.ppo.asynchronous.group_queue import Group
from verl.trainer.ppo.collect.protocol import FinishedEpisode


@dataclass(frozen=True)
class Played:
    """The episodes of a group: sampled ones, and the greedy one of its baseline."""

    sampled: Sequence[FinishedEpisode]
    greedy: Sequence[FinishedEpisode] = ()

    @property
    def episodes(self) -> list[FinishedEpisode]:
        """All episodes."""
        return [*self.sampled, *self.greedy]


@dataclass(frozen=True)
class StepGroups:
    """What a step has taken: its groups, those that failed or were rejected before, that were dropped, and
    draws that ended.
    """

    step: int
    groups: Sequence[tuple[Group, Played]]
    left_out: Sequence[tuple[Group, Played]]
    late: Sequence[tuple[Group, Played]]
    draws: Mapping[int, Draw] = field(default_factory=dict)


@dataclass
class Draw:
    """Tasks that were drawn for one step.

    Attributes:
        places: all of them, in the data set.
        left: those that are not dispatched yet, as (place, attempt, number), see `Group`.
        seen: number of groups by task in the last attempt.
    """

    places: list[int] = field(default_factory=list)
    left: list[tuple[int, int, int]] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)
