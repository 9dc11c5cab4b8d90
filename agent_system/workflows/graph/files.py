"""Several team files in one run: each group of episodes is played by one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from agent_system.agent import BaseAgent
from agent_system.environment import BaseEnv
from agent_system.errors import AgentSystemError
from agent_system.workflows.graph.orchestra import NAME, GraphOptions, GraphOrchestra
from agent_system.workflows.graph.schema import AgentSpec


class GraphFiles(GraphOrchestra):
    """The teams of several files; of its own it is that of the first one.

    Attributes:
        teams: the orchestras of all files.
    """

    def __init__(self, config: GraphOptions) -> None:
        """Read the files.

        Raises AgentSystemError for one that is wrong, two that are the same team, and an agent that
        two of them describe differently.
        """
        configs = [replace(config, file=file, files=[]) for file in config.files]
        super().__init__(configs[0])
        self.teams: list[GraphOrchestra] = [self, *map(GraphOrchestra, configs[1:])]
        self._check_apart()
        self.where = f"agent.orchestra.{NAME}.files=[{','.join(config.files)}]"
        self.agents = tuple(dict.fromkeys(name for team in self.teams for name in team.team.agents))
        self.uses_sandbox = any(team.uses_sandbox for team in self.teams)

    def of_group(self, seed: int) -> GraphOrchestra:
        """Return one of the teams."""
        return self.teams[seed % len(self.teams)]

    def make_agent(self, agent_id: str, env_name: str) -> BaseAgent:
        """Return an agent of any file. Raises as `GraphOrchestra.make_agent`."""
        if agent_id not in self.agents:
            self._check_names([*self.agents, agent_id])
        team = next(team for team in self.teams if agent_id in team.team.agents)
        return (super() if team is self else team).make_agent(agent_id, env_name)

    def check(
        self, agents: Mapping[str, BaseAgent], make_env: Callable[[int], BaseEnv], *, forks: bool
    ) -> None:
        """Make the checks of every file."""
        super().check(agents, make_env, forks=forks)
        for team in self.teams[1:]:
            team.check(agents, make_env, forks=forks)

    def warn_of_votes(self, temperatures: Mapping[str, Sequence[float]]) -> None:
        """Warn of votes at temperature 0 in any file."""
        super().warn_of_votes(temperatures)
        for team in self.teams[1:]:
            team.warn_of_votes(temperatures)

    def _check_apart(self) -> None:
        files: dict[str, str] = {}
        agents: dict[str, tuple[str, AgentSpec]] = {}
        for team in self.teams:
            file = team.config.file
            if team.design in files:
                raise AgentSystemError(f"{file}: the same team as {files[team.design]}; name each team once")
            files[team.design] = file
            for name, spec in team.team.agents.items():
                first, its = agents.setdefault(name, (file, spec))
                if _fields(spec) != _fields(its):
                    raise team.team.source.error(
                        ("agents", name),
                        f"the agent is another one in {first}; give it one description, or two names",
                    )


def _fields(spec: AgentSpec) -> object:
    return spec.model_dump(exclude={"like"})
