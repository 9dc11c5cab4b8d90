"""An orchestra is the workflow inside one turn: which agents are called, in which order, under which conditions.

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
from typing import Any, ClassVar

from agent_system.environment import BaseEnv
from agent_system.memory import Memory, SimpleMemory
from agent_system.options import NoOptions, build_options
from agent_system.turn import Turn


class BaseOrchestra(ABC):
    """A workflow that a user subclasses. One object serves all episodes, so per-episode state lives in `run`.

    Attributes:
        agents: names of the agents that may be called; options may change it per object.
        config_class: dataclass of the options under `agent.orchestra.<type>`.
        memory_class: memory of the team across turns; options may change it per object.
        uses_sandbox: its agents write programs that the environment runs in `agent_system.sandbox.shared_sandbox()`; a run without a
            working sandbox then does not start. Options may change it per object.
        config: the options of this run.
    """

    agents: tuple[str, ...] = ()
    config_class: ClassVar[type] = NoOptions
    memory_class: type[Memory] = SimpleMemory
    uses_sandbox: bool = False

    def __init__(self, config: Any = None) -> None:
        self.config = self.config_class() if config is None else config

    @classmethod
    def from_options(cls, options: Mapping[str, Any] | None, name: str) -> BaseOrchestra:
        """Build the orchestra registered as `name` from the dict under `agent.orchestra.<name>`."""
        return cls(build_options(cls.config_class, options, f"agent.orchestra.{name}"))

    def check(self, agent_ids: Sequence[str], make_env: Callable[[int], BaseEnv], *, forks: bool) -> None:  # noqa: B027 - nothing to refuse
        """Reject a team or an environment that this workflow does not support, before a model loads.

        Args:
            agent_ids: the team.
            make_env: makes the run's environment for a seed.
            forks: candidates will be tried on forks of it (`rollout.sampling=tree`).

        Raises:
            AgentSystemError: naming what is not supported.
        """

    @abstractmethod
    async def run(self, turn: Turn) -> Any:
        """Play one turn and return the action that goes to `env.step`."""
