"""A warm start: demonstrations that first teach mostly a skill and then mostly a habit.

Careful replies of the demonstrators earn rewards; habitual ones are short and mostly fail. The course has
mostly careful replies and ends with habitual ones. So the warm-started team has the skill but seldom uses it,
and reinforcement learning, which has no demonstrations, can discover that careful replies are rewarded.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from agent_system.agent import BaseAgent, Entry
from agent_system.workflows.data import TaskSet
from verl.models.tiny import TinyModelSize

Messages = list[dict[str, str]]
T = TypeVar("T")


@dataclass(frozen=True)
class Course:
    """Order of the demonstrations of a warm start. Worlds add fields.

    Attributes:
        count: total number of demonstrations.
        habits: behaviour of the demonstrators in the last part, an instance of a world's `Habits`.
        careful: their main behaviour before.
        habits_from: share of `count` at which the last part starts.
        habits_before: share of demonstrations with `habits` before, so that both behaviours are learned.
        difficulty: difficulty of the tasks, if they have one.
        batch_size: demonstrations per optimizer step.
    """

    count: int = 38_400
    habits: Any = None
    careful: Any = None
    habits_from: float = 0.75
    habits_before: float = 0.15
    difficulty: Any = None
    batch_size: int = 32

    def conversations(
        self, rng: random.Random, tasks: Iterable[T], episode: Callable[[T, Any], Iterable[Messages]]
    ) -> list[Messages]:
        """Return `count` conversations (prompt and reply), or fewer if there are too few tasks.

        Args:
            rng: draws the behaviour of each episode.
            tasks: tasks of the demonstrations.
            episode: maps (task, habits) to the conversations of one episode.
        """
        made: list[Messages] = []
        for task in tasks:
            if len(made) >= self.count:
                break
            habitual = len(made) >= self.count * self.habits_from or rng.random() < self.habits_before
            made += episode(task, self.habits if habitual else self.careful)
        return made[: self.count]


def conversation(
    agent: BaseAgent, env_prompt: str, reply: str, entries: Sequence[Entry] = (), **variables: Any
) -> Messages:
    """Return an agent's prompt, as in training, and its reply.

    Args:
        agent: agent of the workflow, in the short prompt style.
        env_prompt: text of the observation.
        reply: the agent's reply.
        entries: earlier replies of the turn.
        variables: further variables of the prompt.
    """
    variables = {
        "env_prompt": env_prompt,
        "team_context": agent.team_context(entries),
        "step": 1,
        "memory": "",
        **variables,
    }
    return [*agent.messages(variables), {"role": "assistant", "content": reply}]


@dataclass(frozen=True)
class World:
    """The embedded default of a workflow.

    Attributes:
        course: course of the warm start.
        tasks: generator of the tasks.
        demos: maps (course, seed, keys of tasks to leave out) to conversations.
        borrows: other worlds whose code this one uses.
        size: size of the model.
        courses: further courses by name (`--course`).
        tools: maps a conversation to the JSON schemas of its agent's tools.
        tokenizer: maps a course to the model's tokenizer; None for one that is trained on the demonstrations.
        warm_start: trains the model as `run_sft` does; None for that.
    """

    course: Course
    tasks: TaskSet
    demos: Callable[[Any, int, Collection[Any]], list[Messages]] = field(repr=False)
    borrows: tuple[str, ...] = ()
    size: TinyModelSize = field(default_factory=TinyModelSize)
    courses: Mapping[str, Course] = field(default_factory=dict)
    tools: Callable[[Messages], list[Any]] = lambda _: []
    tokenizer: Callable[[Any], Any] | None = None
    warm_start: Callable[[Any], dict[str, float]] | None = None


UNTIED = TinyModelSize(tie_embeddings=False)
