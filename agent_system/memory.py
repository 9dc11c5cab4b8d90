"""Memory of earlier turns: of a team, shared by all its agents, or of one agent
(`BaseAgent.memory_class`).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Self


@dataclass(frozen=True)
class Recollection:
    """One remembered turn; for the memory of one agent, one of its calls.

    Attributes:
        step: number of the turn, from 1.
        observation: text of the observation.
        action: the action of the turn.
    """

    step: int
    observation: str
    action: str


class Memory:
    """The last `history_length` turns as text; subclasses format a turn in `render`.

    Attributes:
        history_length: turns that `text` shows; 0 shows none.
        keeps_result: a turn is stored with the observation after its action, not the one before it.
    """

    empty: ClassVar[str] = ""
    keeps_result: ClassVar[bool] = False

    def __init__(self, history_length: int) -> None:
        if history_length < 0:
            raise ValueError(f"env.history_length must be 0 or more, found {history_length}")
        self.history_length = history_length
        self._turns: list[Recollection] = []
        self._stored = 0
        # number and action of calls whose result is not known
        self._waiting: list[tuple[int, str]] = []
        self._calls = 0

    def __len__(self) -> int:
        return len(self._turns)

    @property
    def due(self) -> bool:
        """Whether the next call of the memory's agent begins with a summary."""
        return False

    def store(self, observation: str, action: str) -> None:
        """Remember a finished turn."""
        self._stored += 1
        self._turns.append(Recollection(self._stored, observation, action))

    def remember(self, observation: str, action: str, before: Memory | None = None) -> None:
        """Remember a call of the memory's agent.

        With `keeps_result` the observation is the result of the agent's calls before it.

        Args:
            observation: what the agent saw in the call.
            action: its action.
            before: the memory when the call began, if other calls have been remembered since then:
                they ran at the same time, and their result is a later observation.
        """
        if not self.keeps_result:
            self.store(observation, action)
            return
        earlier_calls = [call for call in self._waiting if before is None or call in before._waiting]
        for _, earlier in earlier_calls:
            self.store(observation, earlier)
        self._waiting = [
            *(call for call in self._waiting if call not in earlier_calls),
            (self._calls, action),
        ]
        self._calls += 1

    def at(self, observation: str) -> Memory:
        """Return the memory as a prompt shows it whose agent sees `observation`: with
        `keeps_result`, the result of its last calls.
        """
        if not self._waiting:
            return self
        memory = self.fork()
        for _, action in self._waiting:
            memory.store(observation, action)
        return memory

    def recent(self, drop: int = 0) -> list[Recollection]:
        """Return the turns shown in prompts, oldest first, without the `drop` oldest of them."""
        turns = self._turns[-self.history_length :] if self.history_length else []
        return turns[drop:]

    @property
    def parts(self) -> int:
        """Number of parts of the text that can be dropped."""
        return len(self.recent())

    def text(self, drop: int = 0) -> str:
        """Return the recent turns for a prompt's `{memory}`, without the `drop` parts that a prompt
        needs least.
        """
        return "\n".join(self.render(t) for t in self.recent(drop)) or self.empty

    def render(self, turn: Recollection) -> str:
        """Return one turn as text."""
        raise NotImplementedError

    def fork(self) -> Self:
        """Return an independent copy."""
        return copy.deepcopy(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copied = memo[id(self)] = copy.copy(self)
        # a turn never changes, so copies share it: an agent with a memory is copied for every reply,
        # which would take longer with every turn
        for name, value in vars(self).items():
            setattr(copied, name, list(value) if name == "_turns" else copy.deepcopy(value, memo))
        return copied


class SimpleMemory(Memory):
    """Observation and action of every turn."""

    def render(self, turn: Recollection) -> str:
        return f"[Observation {turn.step}: {turn.observation!r}, Action {turn.step}: {turn.action!r}]"


class SearchMemory(Memory):
    """Query and result of every search: the action is the query, the observation its result. A
    repeated search is shown once, the last.
    """

    keeps_result = True

    def store(self, observation: str, action: str) -> None:
        """Remember a search instead of an earlier one with the same query and result."""
        # of the turns that prompts show: an older one will not be shown again
        self._turns = [t for t in self.recent() if (t.observation, t.action) != (observation, action)]
        super().store(observation, action)

    def render(self, turn: Recollection) -> str:
        return (
            f"Step {turn.step}: <search>{turn.action}</search> <information>{turn.observation}</information>"
        )


class SummaryMemory(SimpleMemory):
    """Memory of one agent: a summary that the agent writes, and its calls since then.

    When `history_length` calls (at least one) are not in the summary, the agent writes a new one at
    the beginning of its next call. Each is a generation with a prompt, a seed and a call number of
    its own; the environment and the other agents do not see it.

    Attributes:
        prompt: user message that asks for a summary, a template like that of the agent, with the
            same variables but `{team_context}`.
        trained: the summaries of a trained agent are rows of its batches, with the rewards of the
            call that follows.
        summary: the last summary.
    """

    prompt: ClassVar[str] = (
        "{env_prompt}\n\nYour memory:\n{memory}\n\nWrite a short summary of your memory, which "
        "replaces it. Keep what you will need later."
    )
    trained: ClassVar[bool] = True

    def __init__(self, history_length: int) -> None:
        super().__init__(history_length)
        self.summary = ""

    @property
    def due(self) -> bool:
        """Whether the next call begins with a new summary."""
        return len(self._turns) >= max(1, self.history_length)

    @property
    def parts(self) -> int:
        """The calls, oldest first, then the summary."""
        return len(self._turns) + bool(self.summary)

    def recent(self, drop: int = 0) -> list[Recollection]:
        """Return all calls that are not in the summary, without the `drop` oldest of them."""
        return self._turns[drop:]

    def text(self, drop: int = 0) -> str:
        """Return the summary and the calls since then."""
        summary = f"Summary: {self.summary}" if self.summary and drop <= len(self._turns) else ""
        return "\n".join(filter(None, [summary, super().text(drop)]))

    def rewrite(self, summary: str) -> None:
        """Replace the whole memory by a summary; an empty one changes nothing."""
        if summary:
            self.summary = summary
            self._turns = []
            self._waiting = []
