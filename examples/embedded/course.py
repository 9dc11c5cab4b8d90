"""A warm start: demonstrations that first teach mostly a skill and then mostly a habit.

With care, the demonstrators of a world do what pays; by habit, they do what is quick and mostly fails. The course shows mostly care and
ends with habits. So the warm-started team knows how to be careful but seldom is, and reinforcement learning, which sees no demonstration,
can find out that care pays.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from agent_system.agent import BaseAgent, Entry
from agent_system.workflows.data import TaskSet
from verl.models.tiny import TinyModelSize

Messages = list[dict[str, str]]
T = TypeVar("T")


@dataclass(frozen=True)
class Course:
    """What a warm start shows, in this order; shares of `count`. A world adds what it needs.

    Attributes:
        count: demonstrations in all.
        habits: how the demonstrators work in the last part; a world's `Habits` says what can be chosen.
        careful: how they mostly work until then.
        habits_from: the share after which `habits` rule.
        habits_before: share of demonstrations by `habits` until then, so that both ways are known.
        difficulty: of the tasks, where they have one.
    """

    count: int = 38_400
    habits: Any = None
    careful: Any = None
    habits_from: float = 0.75
    habits_before: float = 0.15
    difficulty: Any = None

    def conversations(self, rng: random.Random, tasks: Iterable[T], episode: Callable[[T, Any], Iterable[Messages]]) -> list[Messages]:
        """Return `count` conversations (prompt and reply), or fewer where the tasks run out.

        Args:
            rng: draws who is careful.
            tasks: what the demonstrations are about.
            episode: (task, habits) to the conversations of one episode.
        """
        made: list[Messages] = []
        for task in tasks:
            if len(made) >= self.count:
                break
            habitual = len(made) >= self.count * self.habits_from or rng.random() < self.habits_before
            made += episode(task, self.habits if habitual else self.careful)
        return made[: self.count]


def conversation(agent: BaseAgent, env_prompt: str, reply: str, said: Sequence[Entry] = (), **variables: Any) -> Messages:
    """Return what an agent is asked, as its team later asks it, and its reply.

    Args:
        agent: of the workflow, in the short prompt style.
        env_prompt: what the environment shows.
        reply: of the agent.
        said: what was said before in the turn.
        variables: more of the prompt's variables.
    """
    variables = {"env_prompt": env_prompt, "team_context": agent.team_context(said), "step": 1, "memory": "", **variables}
    return [*agent.messages(variables), {"role": "assistant", "content": reply}]


@dataclass(frozen=True)
class World:
    """A workflow that can start from a tiny model.

    Attributes:
        course: what the warm start shows.
        tasks: what is trained on.
        demos: (course, seed, keys of tasks to leave out) to conversations.
        borrows: other worlds whose code it uses.
        size: of the model.
    """

    course: Course
    tasks: TaskSet
    demos: Callable[[Any, int, Collection[Any]], list[Messages]] = field(repr=False)
    borrows: tuple[str, ...] = ()
    size: TinyModelSize = field(default_factory=TinyModelSize)


UNTIED = TinyModelSize(tie_embeddings=False)
