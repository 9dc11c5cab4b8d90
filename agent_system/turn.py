"""What an orchestra sees of one turn. `Turn.act` is the only place where replies are sampled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from agent_system.agent import Entry, render_entries
from agent_system.environment import Observation
from agent_system.memory import Memory
from agent_system.projection import Projection


class TurnOver(Exception):
    """The environment ended the episode inside this turn (`Outcome.done` of `env.act`), so nobody can speak any more."""


class Sampler(Protocol):
    """How a call becomes a reply: one sample, or the best of several tried on forks of the environment."""

    async def __call__(self, turn: Turn, agent_id: str, variables: Mapping[str, Any]) -> Projection: ...


class Turn:
    """One environment step from the team's side.

    Calls may run at the same time (`asyncio.gather` of several `turn.act`); they then do not read each other, and their order is
    the order in which they were started. Of branches of several calls each, the later calls are numbered and seeded in the order in
    which they are made. With `rollout.sampling=tree` all branches go on together, so that order never changes; in parallel sampling it
    follows from who is answered first, and a run is repeated exactly only where that is the same.

    Attributes:
        observation: what the environment showed at the start of the turn.
        step: number of the turn, from 1.
        entries: who said what so far in this turn, in call order.
        memory: what the team remembers of earlier turns.
        info: numbers an orchestra wants in the metrics (`env/<name>`); they join the episode's info.
        done: the environment has ended the episode; a further `act` raises `TurnOver`.
    """

    def __init__(self, observation: Observation, step: int, memory: Memory, sampler: Sampler) -> None:
        self.observation = observation
        self.step = step
        self.memory = memory
        self.info: dict[str, Any] = {}
        self.done = False
        self._sampler = sampler
        self._said: list[Entry | None] = []

    @property
    def entries(self) -> list[Entry]:
        """Who said what so far."""
        return [e for e in self._said if e is not None]

    @property
    def team_context(self) -> str:
        """Who said what so far, as text."""
        return render_entries(self.entries)

    async def act(self, agent_id: str, **variables: Any) -> Projection:
        """Let an agent speak; return what its projection made of the reply.

        Args:
            agent_id: one of the orchestra's agents.
            variables: what its prompt template uses beyond `env_prompt`, `team_context`, `memory` and `step`.

        Raises:
            TurnOver: the environment has already ended the episode.
        """
        if self.done:
            raise TurnOver(f"{agent_id} was called after the environment ended the episode in turn {self.step}")
        return await self._sampler(self, agent_id, variables)

    def note(self, speaker: str, text: str) -> None:
        """Add something that no agent said (a tool's result, say) to the team context."""
        self._said.append(Entry(speaker, text))

    def reserve(self) -> int:
        """Keep a place in the team context for a call that starts now, so that order does not depend on who answers first."""
        self._said.append(None)
        return len(self._said) - 1

    def record(self, place: int, entry: Entry) -> None:
        """Fill a reserved place."""
        self._said[place] = entry
