"""Teams that play: all files of a generation at once, on the same tasks with the same seeds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from agent_system.environment import Task
from agent_system.errors import AgentSystemError
from agent_system.evolve.replay import ReplayMemory
from agent_system.record import EpisodeRecord
from agent_system.rollout.collector import Collector
from agent_system.rollout.metrics import critical_tokens
from agent_system.rollout.seeds import stable_seed
from agent_system.workflows.graph.team import Team

BATCH = 16
MOST_STORIES = 3
MOST_TEXT = 400
# Number of the group of tasks that are held out: those of the stream are epochs, from 0. Rows of both
# files may have the same id, so with the number of an epoch they would have its seeds.
HELD_OUT_GROUP = -1
# By how much a sum of rewards, of several turns for example, may miss 0 or 1.
ROUNDING = 1e-6


@dataclass(frozen=True)
class PlayedEpisode:
    """What counts of an episode.

    Attributes:
        score: from 0 to 1; 0 if it failed.
        tokens: tokens of all replies, whether an engine generated them or they were kept.
        critical_tokens: of the longest chain of replies that read each other: its latency.
        cause: why it failed, or empty.
        weights: number of trainings before it was played.
    """

    score: float
    tokens: int
    critical_tokens: int
    cause: str = ""
    weights: int = 0


@dataclass(frozen=True)
class Batch:
    """What teams have played.

    Attributes:
        episodes: of each team, one per task.
        engine_tokens: tokens that engines generated for it.
        calls, engine_calls: replies of the episodes, and those that engines generated.
        stories: of each team some episodes with a low score, for a model that writes edits.
    """

    episodes: list[list[PlayedEpisode]]
    engine_tokens: int = 0
    calls: int = 0
    engine_calls: int = 0
    stories: list[list[dict[str, Any]]] = field(default_factory=list)


class Player(Protocol):
    """Plays teams."""

    async def play(self, teams: Sequence[Team], first: int, count: int, *, held_out: bool = False) -> Batch:
        """Play tasks `first` to `first + count` of the stream, or of the tasks that are held out.

        The result depends on teams, tasks, seeds and weights alone.
        """
        ...


def story(record: EpisodeRecord, prompt: str) -> dict[str, Any]:
    """Return an episode for a prompt: the task, the replies in their order, and the answer; never
    the ground truth.
    """
    calls = [[s.agent_id, s.text[-MOST_TEXT:], s.action[-MOST_TEXT:]] for s in record.committed]
    return {"task": prompt[:MOST_TEXT], "calls": calls, "answer": record.answer[-MOST_TEXT:]}


@dataclass
class TeamPlayer:
    """Plays teams in a run's environment.

    Attributes:
        collector: makes the collector of a team.
        tasks: tasks of the stream, which repeats them in another order with other seeds.
        val_tasks: tasks that are held out.
        memory: kept replies, which count what engines generate.
        score: name of the episode's number that counts.
        seed: `data.seed`.
    """

    collector: Callable[[Team], Collector]
    tasks: Sequence[Task]
    val_tasks: Sequence[Task]
    memory: ReplayMemory
    score: str
    seed: int
    _collectors: dict[str, Collector] = field(default_factory=dict, init=False)

    async def play(self, teams: Sequence[Team], first: int, count: int, *, held_out: bool = False) -> Batch:
        """See `Player`. Raises AgentSystemError for a score that is missing or not from 0 to 1, and
        EngineGoneError.
        """
        groups = self._held_out(first, count) if held_out else self._stream(first, count)
        by_team = await asyncio.gather(*(self._records(team, groups) for team in teams))
        records = [record for team_records in by_team for record in team_records]
        prompts = [task.prompt for _, tasks in groups for task in tasks]
        return Batch(
            [[self._episode(record) for record in team_records] for team_records in by_team],
            self.memory.tokens,
            sum(len(s.generations) for r in records for s in (*r.samples, *r.unheard)),
            self.memory.replies,
            [self._stories(team_records, prompts) for team_records in by_team],
        )

    def forget_teams(self) -> None:
        """Forget the collectors of teams: their engines have other weights now."""
        self._collectors.clear()

    async def _records(self, team: Team, groups: Sequence[tuple[int, Sequence[Task]]]) -> list[EpisodeRecord]:
        """Play a team; a group of tasks has a number, which is a part of the seeds."""
        key = team.key()
        collector = self._collectors.get(key) or self._collectors.setdefault(key, self.collector(team))
        results = [await collector.collect(tasks, 1, step=step, validate=True) for step, tasks in groups]
        return [record for result in results for record in result.episodes]

    def _stream(self, first: int, count: int) -> list[tuple[int, list[Task]]]:
        groups: dict[int, list[Task]] = {}
        for place in range(first, first + count):
            epoch, number = divmod(place, len(self.tasks))
            rng = random.Random(stable_seed(self.seed, "evolve/stream", epoch))
            order = rng.sample(range(len(self.tasks)), len(self.tasks))
            groups.setdefault(epoch, []).append(self.tasks[order[number]])
        return list(groups.items())

    def _held_out(self, first: int, count: int) -> list[tuple[int, list[Task]]]:
        return [(HELD_OUT_GROUP, list(self.val_tasks[first : first + count]))]

    def _episode(self, record: EpisodeRecord) -> PlayedEpisode:
        tokens = sum(s.response_tokens for s in (*record.samples, *record.unheard))
        if record.failure is not None:
            return PlayedEpisode(0.0, tokens, critical_tokens(record), record.failure.partition(":")[0])
        if self.score not in record.scores:
            names = ", ".join(record.scores)
            raise AgentSystemError(
                f"evolve.score={self.score}: episodes have no such number; numbers: {names}"
            )
        score = record.scores[self.score]
        if not -ROUNDING <= score <= 1.0 + ROUNDING:
            raise AgentSystemError(
                f"evolve.score={self.score}: an episode has {score:g}, and a score is from 0 to 1; name "
                "another number, or change the reward"
            )
        return PlayedEpisode(min(max(score, 0.0), 1.0), tokens, critical_tokens(record))

    def _stories(self, records: Sequence[EpisodeRecord], prompts: Sequence[str]) -> list[dict[str, Any]]:
        low = [
            story(record, prompt)
            for record, prompt in zip(records, prompts, strict=True)
            if self._episode(record).score < 0.5 and not record.failed
        ]
        return low[:MOST_STORIES]


def rows_of(episodes: Sequence[PlayedEpisode]) -> list[list[Any]]:
    """Return episodes as a line of the ledger has them."""
    return [[e.score, e.tokens, e.critical_tokens, *([e.cause] if e.cause else [])] for e in episodes]


def episodes_of(rows: Sequence[Sequence[Any]], weights: int = 0) -> list[PlayedEpisode]:
    """Return the episodes of `rows_of`, played after that many trainings."""
    return [replace(PlayedEpisode(*row), weights=weights) for row in rows]


def batch_line(batch: Batch, keys: Sequence[str], *, stories: bool) -> Mapping[str, Any]:
    """Return a batch as a line of the ledger has it."""
    line: dict[str, Any] = {
        "episodes": {key: rows_of(episodes) for key, episodes in zip(keys, batch.episodes, strict=True)},
        "engine_tokens": batch.engine_tokens,
        "calls": batch.calls,
        "engine_calls": batch.engine_calls,
    }
    if stories and batch.stories:
        line["stories"] = {key: rows for key, rows in zip(keys, batch.stories, strict=True) if rows}
    return line
