"""A team as a file: `Team.load("team.yaml")`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.workflows.graph.agent_spec import is_agent_spec
from agent_system.workflows.graph.checks import MAX_CALLS, check_team_file, delegates, step_ids
from agent_system.workflows.graph.draw import draw
from agent_system.workflows.graph.schema import AgentSpec, SpawnKeys, TeamSpec, read_spec
from agent_system.workflows.graph.source import TeamSource, read_file, read_text, write_text

AGENT_KEYS = ("call", "vote", "best", "agent", "delegate")  # whose texts are agents


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
            from agent_system.workflows.graph.agent_spec_reader import team_of  # which few files need

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
        Path(path).write_text(text, encoding="utf-8")

    def key(self) -> str:
        """Return 16 hexadecimal digits that are equal for teams which make the same calls:
        comments, the form of the text, and the names of steps and, where no prompt shows them, of
        agents do not count.
        """
        content = json.dumps(self._canonical(), sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def mermaid(self) -> str:
        """Return the steps as a flow chart in Mermaid."""
        return draw(self.spec)

    def _canonical(self) -> dict[str, Any]:
        """Return the team as values of JSON types, with names by the order of appearance."""
        steps = {name: f"s{number}" for number, name in enumerate(step_ids(self.spec.do))}
        order = list(dict.fromkeys(called_agents(self.spec.model_dump(by_alias=True)["do"])))
        for name in order:  # which grows by those that agents delegate to
            order += [keys.delegate for keys in delegates(self.agents[name]) if keys.delegate not in order]
        agents = {name: f"a{number}" for number, name in enumerate(order)}
        names_shown = any(_shows_names(agent) for agent in self.agents.values())
        canonical: dict[str, Any] = {"memory": self.spec.memory, "agents": {}}
        for name, agent in self.agents.items():
            fields = agent.model_dump(by_alias=True, exclude={"variables"})
            like = self.spec.agents[name].like
            fields |= {"as": agent.as_ or name, "like": agents.get(like) if like else None}
            fields |= {"answer": _answer(agent), **({"name": name} if names_shown else {})}
            fields["tools"] = _renamed(fields["tools"], agents, {})
            canonical["agents"][agents[name]] = fields
        content = self.spec.model_dump(by_alias=True, exclude_unset=True, include={"do", "return_"})
        canonical |= _renamed(content, agents, steps)
        return canonical


def _answer(agent: AgentSpec) -> Any:
    kind = agent.answer.kind
    return {kind: agent.answer.model_dump()[kind]}


def _shows_names(agent: AgentSpec) -> bool:
    """Return whether an agent's prompt may show the names of others: a class may."""
    if agent.class_ is not None or agent.quote is None:
        return True
    return "{role}" in agent.quote.entry or "{agent}" in agent.quote.entry


def called_agents(value: Any) -> list[str]:
    """Return the agents that steps call, in the order of the file."""
    if isinstance(value, list):
        return [name for item in value for name in called_agents(item)]
    if not isinstance(value, dict):
        return []
    names = [value[key] for key in AGENT_KEYS if isinstance(value.get(key), str)]
    return [*names, *(name for item in value.values() for name in called_agents(item))]


def _renamed(value: Any, agents: Mapping[str, str], steps: Mapping[str, str], key: str = "") -> Any:
    """Return a value of the file with new names of agents and steps."""
    if isinstance(value, dict):
        if key == "spawn":
            value = SpawnKeys.model_validate(value).model_dump()
        return {name: _renamed(item, agents, steps, name) for name, item in value.items()}
    if isinstance(value, list):
        named = key in ("sees", "vote", "of")
        return [steps.get(item, item) if named else _renamed(item, agents, steps, key) for item in value]
    if not isinstance(value, str):
        return value
    if key in AGENT_KEYS:
        return agents[value]
    return steps[value] if key in ("id", "of") else value
