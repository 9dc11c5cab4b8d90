"""One turn as an orchestra sees it. `Turn.act` is the only place where replies are sampled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_system.agent import Entry, render_entries
from agent_system.environment import Observation
from agent_system.errors import AgentSystemError
from agent_system.memory import Memory
from agent_system.projection import Projection

if TYPE_CHECKING:
    from agent_system.waves import Branch


class TurnOver(Exception):
    """The environment ended the episode inside this turn (`Outcome.done` of `env.act`), so no
    further call is possible.
    """


@dataclass(frozen=True, slots=True)
class CallContext:
    """What a call's prompt shows: `variables` as of `Turn.act`, and `entries`, or with None the team
    context: replies whose `step` is in `sees`, None: all and the notes. The call's own reply has
    `step`. `branch` is the part of the turn that calls, where several run in waves; `task` belongs to the
    anchor of a child.
    """

    variables: Mapping[str, Any]
    step: str = ""
    sees: frozenset[str] | None = None
    branch: Branch | None = None
    entries: tuple[Entry, ...] | None = None
    task: str = ""


class Turn:
    """One environment step from the team's side.

    Calls may run concurrently (`asyncio.gather` of several `turn.act`); their prompts then do not
    contain each other's replies, and they are numbered in the order in which they were started. In
    concurrent branches of several calls each this order depends on that of the replies, and with it
    seeds; not in branches of `agent_system.children.spawn`, nor with `rollout.sampling=tree`.

    Attributes:
        observation: observation at the start of the turn.
        step: number of the turn, from 1.
        entries: replies and notes of this turn so far, in call order.
        memory: memory of earlier turns.
        info: numbers that the orchestra adds to the metrics (`env/<name>`); they are merged into
            the episode's info.
        counts: numbers like those of `info`, which add up over the turns of the episode.
        done: the environment has ended the episode; a further `act` raises `TurnOver`.
        callers: agents of the calls so far, by the calls' numbers.
        design: key of the team file whose steps are played, for the samples of the calls that follow.
    """

    def __init__(self, observation: Observation, step: int, memory: Memory, sampler: Sampler) -> None:
        self.observation = observation
        self.step = step
        self.memory = memory
        self.info: dict[str, Any] = {}
        self.counts = Counter[str]()
        self.done = False
        self.callers: dict[int, str] = {}
        self.design = ""
        self._sampler = sampler
        self._is_spawning = False
        self._entries: list[Entry | None] = []
        self._steps: list[str] = []  # of each entry

    @property
    def entries(self) -> list[Entry]:
        """Replies and notes so far, in call order."""
        return self.visible_entries(None)

    def visible_entries(self, sees: frozenset[str] | None) -> list[Entry]:
        """Return the entries that a call shows, see `CallContext`."""
        entries = zip(self._entries, self._steps, strict=True)
        return [e for e, step in entries if e is not None and (sees is None or step in sees)]

    @property
    def team_context(self) -> str:
        """The entries so far as text."""
        return render_entries(self.entries)

    async def act(self, agent_id: str, **variables: Any) -> Projection:
        """Call an agent and return the projection of its reply.

        Args:
            agent_id: one of the orchestra's agents.
            variables: variables of its prompt template beyond `env_prompt`, `team_context`,
                `memory` and `step`.

        Raises:
            TurnOver: the environment has already ended the episode.
        """
        return await self.call(agent_id, CallContext(variables))

    async def call(self, agent_id: str, context: CallContext) -> Projection:
        """Call an agent like `act`, as a step of a workflow whose calls do not all read all
        replies.
        """
        if context.branch is not None:
            await context.branch.enter()
        self.refuse_done(agent_id)
        return await self._sampler(self, agent_id, context)

    def refuse_done(self, agent_id: str) -> None:
        """Raise TurnOver for a call after the environment has ended the episode."""
        if self.done:
            raise TurnOver(
                f"{agent_id} was called after the environment ended the episode in turn {self.step}"
            )

    @contextmanager
    def one_spawn(self) -> Iterator[None]:
        """Mark the turn for the time of a spawn outside of children. Raise AgentSystemError if there
        is one: their children would be numbered in the order of replies.
        """
        if self._is_spawning:
            raise AgentSystemError(
                "a turn awaits its spawns one by one; a child spawns with itself as the parent"
            )
        self._is_spawning = True
        try:
            yield
        finally:
            self._is_spawning = False

    def note(self, speaker: str, text: str) -> None:
        """Add a text that no agent wrote, such as a tool's result, to the team context."""
        self.record(self.reserve(), Entry(speaker, text))

    def number(self, role: str, branch: Branch | None = None) -> int:
        """Return a new number of the turn, from 0, for a generation of an agent; `role` is its name
        for the environment, `branch` the branch that calls it.
        """
        number = next(reversed(self.callers), -1) + 1  # the last one is the highest
        self.callers[number] = role
        if branch is not None:
            branch.waves.count(number)
        return number

    def reserve(self, step: str = "") -> int:
        """Reserve a place in the team context for a call that starts now, so that the order does
        not depend on the order of replies.
        """
        self._entries.append(None)
        self._steps.append(step)
        return len(self._entries) - 1

    def record(self, place: int, entry: Entry | None) -> None:
        """Fill a reserved place, or with None empty it again."""
        self._entries[place] = entry


# How the reply to a call is sampled: one sample, or a choice among several tried on forks of the
# environment.
Sampler = Callable[[Turn, str, CallContext], Awaitable[Projection]]
