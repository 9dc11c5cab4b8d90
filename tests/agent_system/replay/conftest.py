"""Plays episodes and audits them, with engines that cost nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from agent_system import Task
from agent_system.record import EpisodeRecord
from agent_system.replay.arms import (
    ArmPlayer,
    AuditSize,
    Decision,
    DecisionOutcome,
    decisions_of,
    row_key,
    spread,
)
from agent_system.replay.client import Replays, replayer
from agent_system.replay.effects import Measured
from agent_system.rollout import Collector
from agent_system.testing import make_tokenizer
from verl.protocol.generate import GenerateRequest, Generation

SIZE = AuditSize(decisions=1000, alternatives=3, continuations=2, seed=5)


class Dice:
    """An engine: `say` (prompt, random) is the text of a reply; the seed alone decides."""

    def __init__(self, tokenizer: Any, say: Callable[[str, random.Random], str]) -> None:
        self.tokenizer, self.say = tokenizer, say
        self.count = 0

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """As an engine."""
        prompt = self.tokenizer.decode(request.prompt_ids)
        self.count += request.n
        replies = []
        for number in range(request.n):
            text = self.say(prompt, random.Random(f"{request.seed}/{number}"))
            ids = (*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id)
            replies.append(Generation(ids, (-0.5,) * len(ids), "stop"))
        return replies


@dataclass(frozen=True)
class Audited:
    """Episodes, their decisions, and what became of these."""

    episodes: list[EpisodeRecord]
    decisions: list[Decision]
    outcomes: list[DecisionOutcome]

    @property
    def measured(self) -> Measured:
        """The numbers of the decisions."""
        return Measured.of(self.outcomes, self.decisions)

    @property
    def causes(self) -> list[str]:
        """Why decisions were not restored."""
        return [outcome.cause for outcome in self.outcomes if outcome.cause]


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture
def audited() -> Callable[..., Any]:
    """Play tasks and replay their decisions."""

    async def run(
        team: Collector, tasks: Sequence[Task], n: int = 1, size: AuditSize = SIZE, step: int = 3
    ) -> Audited:
        result = await team.collect(tasks, n, step=step)
        played = [e for e in result.episodes if not e.failed]
        rows = {row_key(e.traj_uid, s) for e in played for s in e.samples if s.identity.trained}
        decisions = decisions_of(played, rows)
        replays = Replays()
        again = replayer(team, replays)
        async with again.playing(size.decisions) as player:
            arms = ArmPlayer(player, replays, size, step, by_prompt=not team.orchestra.uses_prompts)
            outcomes = await arms.play(spread(decisions, size.decisions, size.seed))
        return Audited(played, decisions, outcomes)

    return run
