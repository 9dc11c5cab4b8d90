"""Designs: the steps of a team as JSON, written by a model and read as data that may be hostile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.projection import strip_thinking
from agent_system.turn import Turn
from agent_system.workflows.graph.checks import check_team_file, children
from agent_system.workflows.graph.play import compile_team
from agent_system.workflows.graph.schema import AnyStep, read_spec
from agent_system.workflows.graph.source import TeamSource, read_text, short
from agent_system.workflows.graph.team import Team

MAX_REPLY = 32 * 1024
MAX_MESSAGE = 400
AGENT_KEYS = ("call", "vote", "best", "agent")  # of steps, whose texts are agents
KEYS = ("do", "return")
REMEMBERED = 512


@dataclass(frozen=True)
class Design:
    """A design that can be played.

    Attributes:
        key: `Team.key` of roles and steps.
        steps: number of steps.
        calls: largest number of calls in a turn.
        play: plays a turn and returns the team's action.
    """

    key: str
    steps: int
    calls: int
    play: Callable[[Turn], Awaitable[Any]]


class Roles:
    """The roles of a team file, for which designs have steps.

    Attributes:
        team: the file; its agents are the roles.
    """

    def __init__(self, team: Team, max_steps: int, max_calls: int) -> None:
        """Set the limits of a design."""
        self.team = team
        self._limits = (max_steps, max_calls)
        self._specs = {name: _plain(spec) for name, spec in team.agents.items()}
        # episodes that share a design read it once
        self.read = lru_cache(REMEMBERED)(self._read)

    def _read(self, text: str) -> Design:
        """Read a reply: a JSON object with `do` and `return`, as of a team file, alone or in a
        fenced block.

        Raises AgentSystemError, in one line, for any other text, a step for which there is no role,
        more steps or calls than the limits, and a default answer, which no role would have given.
        """
        try:
            return self._checked(text)
        except AgentSystemError as error:
            raise AgentSystemError(str(error)[:MAX_MESSAGE]) from None

    def _checked(self, text: str) -> Design:
        if len(text) > MAX_REPLY:
            raise AgentSystemError(f"design: {len(text):,} characters; the limit is {MAX_REPLY:,}")
        source = read_text(_json(text), "design", is_json=True)
        value = source.value
        if not isinstance(value, dict) or set(value) != set(KEYS):
            raise AgentSystemError(
                f"design: expected an object with {' and '.join(KEYS)} alone, found {short(value)}"
            )
        names = dict.fromkeys(_called_agents(value["do"]))
        agents = {name: self._specs[name] for name in names if name in self._specs}
        if other_names := [name for name in names if name not in self._specs]:
            roles = ", ".join(self._specs)
            raise source.error(("do",), f"no role {short(other_names[0])}; roles: {roles}")
        whole = TeamSource("design", {"team": 1, "agents": agents, **value}, source.places)
        max_steps, max_calls = self._limits
        spec = read_spec(whole)
        checked = check_team_file(spec, whole, max_calls=max_calls, tools=self._tools())
        steps = _count(spec.do)
        if steps > max_steps:
            raise source.error(("do",), f"{steps} steps; the limit is {max_steps}")
        if spec.return_.default:
            raise source.error(("return",), "a default must be empty: the answer is that of a role")
        team = Team(whole, spec, checked.agents, checked.calls)
        return Design(team.key(), steps, checked.calls, compile_team(spec, apart=True))

    def _tools(self) -> list[str]:
        return [name for spec in self.team.agents.values() for name in spec.tools if isinstance(name, str)]


def _json(text: str) -> str:
    """Return the content of a reply that is a fenced block, else the reply without its thinking."""
    visible = strip_thinking(text)
    if not visible.startswith("```"):
        return visible
    return visible.removesuffix("```").partition("\n")[2]


def _plain(spec: Any) -> dict[str, Any]:
    """Return an agent as its file may describe it, without `like`."""
    return dict(spec.model_dump(by_alias=True, exclude_unset=True, exclude={"like"}))


def _count(steps: Sequence[AnyStep]) -> int:
    return len(steps) + sum(_count(child) for step in steps for _, child in children(step, ()))


def _called_agents(value: Any) -> list[str]:
    """Return the agents that steps call, in the order of the reply."""
    if isinstance(value, list):
        return [name for item in value for name in _called_agents(item)]
    if not isinstance(value, dict):
        return []
    names = [value[key] for key in AGENT_KEYS if isinstance(value.get(key), str)]
    return [*names, *(name for item in value.values() for name in _called_agents(item))]
