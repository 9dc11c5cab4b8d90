"""An orchestra is the workflow inside one turn: which agents are called, in which order, under
which conditions.

    class MathOrchestra(BaseOrchestra):
        agents = ("Solver Agent", "Verifier Agent")

        async def run(self, turn):
            solution = await turn.act("Solver Agent")
            await turn.act("Verifier Agent")
            return solution.action

Branches, loops and `asyncio.gather` are ordinary Python: an agent that is not needed is not called.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from agent_system.agent import BaseAgent
from agent_system.environment import BaseEnv, Outcome
from agent_system.errors import AgentSystemError
from agent_system.memory import Memory, SimpleMemory, SummaryMemory
from agent_system.options import NoOptions, build_options
from agent_system.projection import Projection
from agent_system.turn import Turn, TurnOver


class EpisodeTurns(Protocol):
    """The turns of an episode, as the one who plays them sees them."""

    @property
    def turn(self) -> Turn | None:
        """The current turn; None after the end of the episode."""
        ...

    async def step(self, action: Any) -> Outcome:
        """End the turn with the team's action and return the environment's outcome; an empty one if
        a call has ended the episode.
        """
        ...


class BaseOrchestra(ABC):
    """A workflow that a user subclasses. One object serves all episodes, so per-episode state lives
    in `run`.

    Attributes:
        agents: names of the agents that may be called; options may change it per object.
        config_class: dataclass of the options under `agent.orchestra.<type>`.
        memory_class: memory of the team across turns; options may change it per object.
        uses_sandbox: its agents write programs that the environment runs in
            `agent_system.sandbox.shared_sandbox()`; a run without a working sandbox then does not
            start. Options may change it per object.
        uses_prompts: its calls have the prompts of the agents' classes; tasks are filtered by the
            length of these.
        config: the options of this run.
    """

    agents: tuple[str, ...] = ()
    config_class: ClassVar[type] = NoOptions
    memory_class: type[Memory] = SimpleMemory
    uses_sandbox: bool = False
    uses_prompts: ClassVar[bool] = True

    def __init__(self, config: Any = None) -> None:
        self.config = self.config_class() if config is None else config

    @classmethod
    def from_options(cls, options: Mapping[str, Any] | None, name: str) -> BaseOrchestra:
        """Build the orchestra registered as `name` from the dict under `agent.orchestra.<name>`."""
        return cls(build_options(cls.config_class, options, f"agent.orchestra.{name}"))

    def check(  # noqa: B027 - nothing to refuse
        self, agents: Mapping[str, BaseAgent], make_env: Callable[[int], BaseEnv], *, forks: bool
    ) -> None:
        """Reject a team or an environment that this workflow does not support, before a model
        loads.

        Args:
            agents: the team.
            make_env: makes the run's environment for a seed.
            forks: candidates will be tried on forks of it (`rollout.sampling=tree`).

        Raises:
            AgentSystemError: naming what is not supported.
        """

    def make_agent(self, agent_id: str, env_name: str) -> BaseAgent | None:  # noqa: B027 - as check
        """Return an agent that the options describe; None for one whose class is registered."""

    def check_agents(self, temperatures: Mapping[str, Sequence[float]]) -> None:  # noqa: B027 - as check
        """Reject, or warn of, names of agents and their temperatures in training and in validation."""

    def of_group(self, seed: int) -> BaseOrchestra:
        """Return the orchestra of a group of episodes: for one that has several, a draw by `seed`."""
        del seed
        return self

    async def play_episode(self, episode: EpisodeTurns) -> None:
        """Play a whole episode: `run` for every turn. A program that spans the turns of an episode
        overrides it.
        """
        while (turn := episode.turn) is not None:
            action = None
            try:
                action = self._checked(await self.run(turn))
            except TurnOver:
                if not turn.done:
                    raise
            await episode.step(action)

    def _checked(self, action: Any) -> Any:
        """Return the action of a turn. Raises AgentSystemError for what no environment takes."""
        if action is None or isinstance(action, Projection):
            raise AgentSystemError(
                f"{type(self).__name__}.run() must return the action that goes to env.step, such as "
                f"(await turn.act(...)).action, found {type(action).__name__}"
            )
        return action

    async def release(self) -> None:  # noqa: B027 - most have nothing to release
        """Release what episodes share in this event loop; called after the last of the episodes
        that are played together.
        """

    @abstractmethod
    async def run(self, turn: Turn) -> Any:
        """Play one turn and return the action that goes to `env.step`."""


def check_members(
    orchestra: BaseOrchestra,
    agents: Mapping[str, BaseAgent],
    make_env: Callable[[int], BaseEnv],
    temperatures: Mapping[str, Sequence[float]],
    *,
    forks: bool,
) -> None:
    """Raise AgentSystemError for agents and an environment that do not fit the orchestra; arguments
    are those of its `check` and `check_agents`.
    """
    orchestra.check_agents(temperatures)
    missing = [name for name in orchestra.agents if name not in temperatures]
    if missing:
        raise AgentSystemError(
            f"{type(orchestra).__name__} needs the agents {missing}, which no policy serves; "
            f"agent.agent_ids lists: {', '.join(temperatures) or 'none'}"
        )
    orchestra.check(agents, make_env, forks=forks)
    if issubclass(orchestra.memory_class, SummaryMemory):
        raise AgentSystemError(
            f"{type(orchestra).__name__}.memory_class is {orchestra.memory_class.__name__}, "
            "which an agent writes; make it the memory_class of an agent"
        )
