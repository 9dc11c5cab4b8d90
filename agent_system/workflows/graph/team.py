"""A team as a file: `Team.load("team.yaml")`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

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
    def load(cls, path: str | Path, *, max_calls: int = MAX_CALLS, tools: Collection[str] = ()) -> Team:
        """Read a file, JSON if its name ends in `.json`, else YAML.

        Args:
            path: the file.
            max_calls: largest number of calls in a turn that is allowed.
            tools: names of tools that agents may have beside the shipped ones.

        Raises:
            AgentSystemError: the first thing that is wrong, in one line with file, line, column and
                path.
        """
        return cls._checked(read_file(path), max_calls, tools)

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        name: str = "team",
        is_json: bool = False,
        max_calls: int = MAX_CALLS,
        tools: Collection[str] = (),
    ) -> Team:
        """Read a text; `name` stands for the file in messages. Arguments and errors as of `load`."""
        return cls._checked(read_text(text, name, is_json=is_json), max_calls, tools)

    @classmethod
    def _checked(cls, source: TeamSource, max_calls: int, tools: Collection[str]) -> Team:
        spec = read_spec(source)
        checked = check_team_file(spec, source, max_calls=max_calls, tools=tools)
        return cls(source, spec, checked.agents, checked.calls)

    def text(self, *, is_json: bool = False) -> str:
        """Return the team as YAML or JSON, without the comments of its file."""
        return write_text(self.source.value, is_json=is_json)

    def save(self, path: str | Path) -> None:
        """Write a file that `load` reads as the same team, JSON if its name ends in `.json`, else
        YAML.
        """
        Path(path).expanduser().write_text(self.text(is_json=str(path).endswith(".json")), encoding="utf-8")

    def key(self) -> str:
        """Return 16 hexadecimal digits that are equal for teams which make the same calls, as far
        as their forms tell: see `canonical.py`.
        """
        content = json.dumps(canonical(self.spec, self.agents), sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def mermaid(self) -> str:
        """Return the steps as a flow chart in Mermaid."""
        return draw(self.spec)
