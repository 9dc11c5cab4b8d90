"""The workflow `graph`: a team that a file describes.

agent.orchestra_type=graph agent.orchestra.graph.file=team.yaml agent.agent_ids='[Solver,Verifier]'
"""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from agent_system.agent import BaseAgent
from agent_system.environment import BaseEnv
from agent_system.errors import AgentSystemError
from agent_system.memory import Memory, SimpleMemory
from agent_system.options import build_options
from agent_system.orchestra import BaseOrchestra
from agent_system.registry import ANY, AgentRegistry, OrchestraRegistry, built_in_workflows
from agent_system.turn import Turn
from agent_system.workflows.graph.agents import MEMORIES, GraphAgent, make_of_class
from agent_system.workflows.graph.checks import MAX_CALLS, children, class_of
from agent_system.workflows.graph.play import compile_team
from agent_system.workflows.graph.schema import AgentSpec, AnyStep, VoteStep
from agent_system.workflows.graph.source import short
from agent_system.workflows.graph.team import Team
from verl.utils.names import did_you_mean

logger = logging.getLogger(__name__)
NAME = "graph"
# Workflows that are modules, not packages, and whose agents are of an environment.
OTHER_WORKFLOWS = ("single",)
# What Hydra reads as text without quotes, unless it is a value of another type.
_PLAIN_WORDS = re.compile(r"[A-Za-z][A-Za-z0-9_]*(?: [A-Za-z0-9_]+)*")
_NO_TEXTS = ("true", "false", "null", "nan", "inf", "infinity")


@dataclass(frozen=True)
class GraphOptions:
    """Options under `agent.orchestra.graph`.

    Attributes:
        file: the team, YAML or JSON, also as a flow of Open Agent Spec.
        files: several teams instead, one of which plays all episodes of a group.
        max_calls: largest number of calls in a turn that the file may make.
        max_loops: rounds of a loop of an Open Agent Spec file that has no limit of its own; 0:
            refuse it.
        tools: functions that agents of the file may call, by name: `module:function`.
    """

    file: str = ""
    files: list[str] = field(default_factory=list)
    max_calls: int = MAX_CALLS
    max_loops: int = 0
    tools: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (isinstance(self.files, list) and all(isinstance(file, str) for file in self.files)):
            raise AgentSystemError(f"agent.orchestra.graph.files must be a list, found {short(self.files)}")
        if self.file and self.files:
            raise AgentSystemError("agent.orchestra.graph has a file and files; keep one of them")
        if not (self.file or self.files):
            raise AgentSystemError(
                "agent.orchestra_type=graph needs the file of a team: "
                "agent.orchestra.graph.file=team.yaml, see docs/graph.md"
            )
        if self.max_calls < 1:
            raise AgentSystemError(
                f"agent.orchestra.graph.max_calls must be 1 or more, found {self.max_calls}"
            )
        if self.max_loops < 0:
            raise AgentSystemError(
                f"agent.orchestra.graph.max_loops must be 0 or more, found {self.max_loops}"
            )
        if not isinstance(self.tools, Mapping):
            raise AgentSystemError(
                f"agent.orchestra.graph.tools must map names to module:function, found {short(self.tools)}"
            )


# Names are looked up before a file is read; `GraphOrchestra.make_agent` makes the agents.
AgentRegistry.register(ANY, orchestra=NAME)(GraphAgent)


@OrchestraRegistry.register(NAME)
class GraphOrchestra(BaseOrchestra):
    """Plays the steps of a file.

    Agents with a `class` are made with the options that the file has for them. The workflows of
    these classes are asked as well: their checks, their need of the sandbox, and their memory
    unless the file names one.

    Attributes:
        team: the team of the file.
        design: its key, of the samples of its calls.
        where: key and file, for messages.
    """

    config_class: ClassVar[type] = GraphOptions

    @classmethod
    def from_options(cls, options: Mapping[str, Any] | None, name: str) -> BaseOrchestra:
        config = build_options(cls.config_class, options, f"agent.orchestra.{name}")
        if not config.files:
            return cls(config)
        return GraphFiles(config)

    def __init__(self, config: GraphOptions) -> None:
        super().__init__(config)
        self.team = Team.load(
            config.file, max_calls=config.max_calls, tools=list(config.tools), max_loops=config.max_loops
        )
        self.design = self.team.key()
        self.where = f"agent.orchestra.{NAME}.file={config.file}"
        self.agents = tuple(self.team.agents)
        self._workflows = {
            name: self._workflow(name, agent) for name, agent in self.team.agents.items() if agent.class_
        }
        self.uses_sandbox = any(map(self._runs_programs, self.agents))
        self.memory_class = self._memory()
        self._run = compile_team(self.team.spec)

    def make_agent(self, agent_id: str, env_name: str) -> BaseAgent:
        """Return an agent of the file. Raises AgentSystemError for a name that it has not, or for a
        class that is not registered.
        """
        if agent_id not in self.agents:
            self._check_names([*self.agents, agent_id])
        spec = self.team.agents[agent_id]
        if spec.tools:
            from agent_system.workflows.graph.tool_agent import (
                make_tool_agent,  # which most teams do not have
            )

            return make_tool_agent(agent_id, spec, self.config.tools)
        if spec.class_ is None:
            return GraphAgent(agent_id, spec)
        try:
            return make_of_class(agent_id, spec, self._workflows[agent_id].config, env_name)
        except AgentSystemError as error:
            raise self._error(agent_id, "class", error) from error

    def check(
        self, agents: Mapping[str, BaseAgent], make_env: Callable[[int], BaseEnv], *, forks: bool
    ) -> None:
        """Make the checks of the workflows that agents' classes are of."""
        workflows = {(type(w), repr(w.config)): w for w in self._workflows.values()}
        for workflow in workflows.values():
            workflow.check(agents, make_env, forks=forks)

    def check_agents(self, temperatures: Mapping[str, Sequence[float]]) -> None:
        """Raise AgentSystemError unless the agents of the run are those of the file; warn of a vote
        at temperature 0, whose replies are all equal.
        """
        self._check_names(list(temperatures))
        self.warn_of_votes(temperatures)

    def warn_of_votes(self, temperatures: Mapping[str, Sequence[float]]) -> None:
        """Warn of votes at temperature 0."""
        for step in _votes(self.team.spec.do):
            if isinstance(step.vote, str) and 0 in temperatures[step.vote]:
                names = zip(("training", "validation"), temperatures[step.vote], strict=True)
                logger.warning(
                    "%s: the %d votes of %r have temperature 0 in %s, so they are all equal",
                    self.config.file, step.n, step.vote, " and ".join(name for name, t in names if t == 0),
                )  # fmt: skip

    async def run(self, turn: Turn) -> Any:
        """Play the steps."""
        turn.design = self.design
        return await self._run(turn)

    def _check_names(self, agent_ids: Sequence[str]) -> None:
        missing = [name for name in self.agents if name not in agent_ids]
        others = [name for name in agent_ids if name not in self.agents]
        if not (missing or others):
            return
        problems = [f"lacks {', '.join(missing)}"] if missing else []
        problems += [f"has {', '.join(others)}, which the file has not"] if others else []
        raise AgentSystemError(
            f"{self.where}: agent.agent_ids {' and '.join(problems)}; set {_setting(list(self.agents))}"
        )

    def _workflow(self, name: str, agent: AgentSpec) -> BaseOrchestra:
        """Return the workflow that an agent's class is of, with the options of the file."""
        workflow, _ = class_of(agent)
        known_workflows = sorted(
            {*built_in_workflows(), *OrchestraRegistry.names(), *OTHER_WORKFLOWS} - {NAME}
        )
        if workflow not in known_workflows:
            message = f"no workflow {workflow!r}{did_you_mean(workflow, known_workflows)}"
            raise self._error(name, "class", f"{message}; workflows: {', '.join(known_workflows)}")
        try:
            return OrchestraRegistry.get(workflow).from_options(agent.options, workflow)
        except AgentSystemError as error:
            raise self._error(name, "options", error) from error

    def _runs_programs(self, agent_id: str) -> bool:
        agent = self.team.agents[agent_id]
        if agent.class_ is None:
            return "python" in agent.tools
        workflow, name = class_of(agent)
        if self._workflows[agent_id].uses_sandbox:
            return True
        if name not in AgentRegistry.names(orchestra=workflow):
            # of an environment, or not registered, which `make_agent` refuses
            return False
        cls = AgentRegistry.get(name, orchestra=workflow)
        if not cls.calls_tools:
            return False
        from agent_system.tools import runs_programs  # tools, which most teams do not have

        return runs_programs(cls)

    def _memory(self) -> type[Memory]:
        if self.team.spec.memory is not None:
            return MEMORIES[self.team.spec.memory]
        memories = list(dict.fromkeys(w.memory_class for w in self._workflows.values())) or [SimpleMemory]
        if len(memories) > 1:
            names = ", ".join(memory.__name__ for memory in memories)
            raise self.team.source.error(
                (),
                f"the classes of its agents remember in different ways ({names}); set memory: "
                "none, simple or search",
            )
        return memories[0]

    def _error(self, agent_id: str, key: str, problem: object) -> AgentSystemError:
        return self.team.source.error(("agents", agent_id, key), str(problem))


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


def _votes(steps: Sequence[AnyStep]) -> list[VoteStep]:
    """Return the votes among steps and inside them."""
    votes = [step for step in steps if isinstance(step, VoteStep)]
    return votes + [vote for step in steps for _, child in children(step, ()) for vote in _votes(child)]


def _setting(agent_ids: Sequence[str]) -> str:
    """Return agents as an argument for a shell and Hydra."""
    return "agent.agent_ids=" + shlex.quote(f"[{','.join(map(_override, agent_ids))}]")


def _override(name: str) -> str:
    """Return a name as an item of a list for Hydra, in quotes unless it is plain words."""
    if _PLAIN_WORDS.fullmatch(name) and name.lower() not in _NO_TEXTS:
        return name
    # OmegaConf takes backslashes as escapes in front of "${" alone, and Hydra in front of a quote
    name = re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + "\\${", name)
    return '"' + re.sub(r'(\\*)("|$)', _escaped, name) + '"'


def _escaped(match: re.Match[str]) -> str:
    return match[1] * 2 + ('\\"' if match[2] else "")
