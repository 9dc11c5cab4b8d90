"""A team as a file: `Team.load("team.yaml")`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent_system.errors import AgentSystemError
from agent_system.workflows.graph.agent_spec import is_agent_spec
from agent_system.workflows.graph.canonical import canonical
from agent_system.workflows.graph.checks import MAX_CALLS, check_team_file
from agent_system.workflows.graph.draw import draw
from agent_system.workflows.graph.schema import AgentSpec, TeamSpec, read_spec
from agent_system.workflows.graph.source import TeamSource, read_file, read_text, write_text


@dataclass(frozen=True)
class Team:
    """A team: agents, and the steps in which they are called.

    Attributes:
        source: the text that it was read from.
        spec: its parts.
        agents: the agents by name, those with `like` completed.
        calls: largest number of calls in a turn.
    """

    source: TeamSource
    spec: TeamSpec
    agents: Mapping[str, AgentSpec]
    calls: int

    @classmethod
    def load(
        cls, path: str | Path, *, max_calls: int = MAX_CALLS, tools: Collection[str] = (), max_loops: int = 0
    ) -> Team:
        """Read a file, JSON if its name ends in `.json`, else YAML; by its content one of Open
        Agent Spec.

        Args:
            path: the file.
            max_calls: largest number of calls in a turn that is allowed.
            tools: names of tools that agents may have beside the shipped ones.
            max_loops: rounds of a loop of an Open Agent Spec file that has no limit of its own; 0:
                refuse it.

        Raises:
            AgentSystemError: the first thing that is wrong, in one line with file, line, column and
                path.
        """
        return cls._checked(read_file(path), max_calls, tools, max_loops)

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        name: str = "team",
        is_json: bool = False,
        max_calls: int = MAX_CALLS,
        tools: Collection[str] = (),
        max_loops: int = 0,
    ) -> Team:
        """Read a text; `name` stands for the file in messages. Arguments and errors as of `load`."""
        return cls._checked(read_text(text, name, is_json=is_json), max_calls, tools, max_loops)

    @classmethod
    def _checked(cls, source: TeamSource, max_calls: int, tools: Collection[str], max_loops: int) -> Team:
        if is_agent_spec(source.value):
            # which few files need
            from agent_system.workflows.graph.agent_spec_reader import team_of

            source = team_of(source, max_loops)
        spec = read_spec(source)
        checked = check_team_file(spec, source, max_calls=max_calls, tools=tools)
        return cls(source, spec, checked.agents, checked.calls)

    def text(self, *, is_json: bool = False, agent_spec: bool = False) -> str:
        """Return the team as YAML or JSON, without the comments of its file.

        Args:
            is_json: JSON instead of YAML.
            agent_spec: as a flow of Open Agent Spec.

        Raises:
            AgentSystemError: Open Agent Spec has no form for the team.
        """
        if not agent_spec:
            return write_text(self.source.value, is_json=is_json)
        from agent_system.workflows.graph.agent_spec_writer import flow_of  # which few files need

        text = write_text(flow_of(self.source.value, self.spec, self.agents), is_json=is_json)
        tools = [tool for agent in self.agents.values() for tool in agent.tools if isinstance(tool, str)]
        again = Team.parse(text, name="the written file", is_json=is_json, max_calls=self.calls, tools=tools)
        if again.key() != self.key():
            raise AgentSystemError(
                f"{self.source.name}: Open Agent Spec has no form for a step of it: the written file would "
                "make other calls"
            )
        return text

    def save(self, path: str | Path, *, agent_spec: bool = False) -> None:
        """Write a file that `load` reads as the same team, JSON if its name ends in `.json`, else
        YAML. Arguments and errors as of `text`.
        """
        text = self.text(is_json=str(path).endswith(".json"), agent_spec=agent_spec)
        Path(path).expanduser().write_text(text, encoding="utf-8")

    def key(self) -> str:
        """Return 16 hexadecimal digits that are equal for teams which make the same calls, as far
        as their forms tell: see `canonical.py`.
        """
        content = json.dumps(canonical(self.spec, self.agents), sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def mermaid(self) -> str:
        """Return the steps as a flow chart in Mermaid."""
        return draw(self.spec)
