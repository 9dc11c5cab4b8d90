"""A team in one form for all files that make the same calls, for `Team.key`.

What does not count: comments and the form of the text, names of steps, names of agents that no
prompt shows, defaults that are written out, `like`, ids and defaults that nothing uses, `sees` of
an agent whose prompt has no `{team_context}`, and the order of lists that are sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent_system.workflows.graph.checks import always_run, delegates, ways_to_end
from agent_system.workflows.graph.schema import (
    AgentAnswer,
    AgentSpec,
    AnyStep,
    CallStep,
    Condition,
    IfStep,
    LoopStep,
    ParallelStep,
    Quote,
    SpawnStep,
    StopStep,
    TeamSpec,
    VoteStep,
    verdict_word,
)

# What an agent without `quote` shows.
PLAIN_QUOTE = Quote(entry="{agent}: {text}", separator="\n\n")


def canonical(spec: TeamSpec, agents: Mapping[str, AgentSpec]) -> dict[str, Any]:
    """Return a team as values of JSON types.

    Args:
        spec: the parts of its file.
        agents: its agents, those with `like` completed.
    """
    ways = ways_to_end(spec.do)
    names = spec.return_.of
    # those behind one that has always run are never returned
    always = next((i for i in range(1, len(names) + 1) if always_run(ways, names[:i])), None)
    names = names[:always]
    form = _Form(agents, names)
    steps = form.steps(spec.do)
    numbers = form.numbers()
    names_shown = any(_shows_names(agent) for agent in agents.values())
    form.name_delegates()
    has_class = any(agent.class_ for agent in agents.values())
    return {
        "memory": spec.memory or (None if has_class else "simple"),
        "agents": {form.agents[name]: form.agent(name, names_shown) for name in agents},
        "do": _renamed(steps, numbers),
        "return": [numbers[name] for name in names],
        "default": spec.return_.default if always is None else None,
    }


class _Name(str):
    """The name of a step, which is replaced by a number."""

    __slots__ = ()


class _Form:
    """Writes steps and agents with numbers for their names.

    Attributes:
        agents: the number of each agent, in the order in which steps call them.
    """

    def __init__(self, specs: Mapping[str, AgentSpec], names: Sequence[str]) -> None:
        self._specs = specs
        self.agents: dict[str, str] = {}
        self._referred = set(names)
        self._order: dict[str, None] = {}

    def steps(self, steps: Sequence[AnyStep]) -> list[Any]:
        """Return steps with their own names, which `_renamed` replaces when all are read."""
        return [self._step(step) for step in steps]

    def numbers(self) -> dict[str, str]:
        """Return a number for every step that something refers to."""
        names = [name for name in self._order if name in self._referred]
        return {name: f"s{number}" for number, name in enumerate(names)}

    def name_delegates(self) -> None:
        """Number the agents that only tools call."""
        names = list(self.agents)
        for name in names:  # which grows
            for keys in delegates(self._specs[name]):
                if keys.delegate not in self.agents:
                    names.append(keys.delegate)
                    self._agent(keys.delegate)

    def agent(self, name: str, names_shown: bool) -> dict[str, Any]:
        """Return an agent."""
        spec = self._specs[name]
        fields = spec.model_dump(include={"prompt", "system", "class_", "options", "memory"})
        if spec.class_ is None:
            quote = PLAIN_QUOTE if spec.quote is None else spec.quote
            fields |= {"quote": quote.model_dump(), "answer": _answer(spec.answer)}
        tools = [
            # the tool's description names the agent
            tool
            if isinstance(tool, str)
            else [self.agents[tool.delegate], tool.delegate, tool.max, tool.depth]
            for tool in spec.tools
        ]
        fields |= {"tools": tools, "max_rounds": spec.max_rounds if tools else None}
        return {**fields, "as": spec.as_ or name, "name": name if names_shown else None}

    def _agent(self, name: str) -> str:
        return self.agents.setdefault(name, f"a{len(self.agents)}")

    def _id(self, name: str | None) -> _Name | None:
        if name is None:
            return None
        self._order.setdefault(name)
        return _Name(name)

    def _refer(self, names: Sequence[str]) -> list[_Name]:
        self._referred.update(names)
        return [_Name(name) for name in names]

    def _sees(self, names: Sequence[str] | None, agent: str) -> list[_Name] | None:
        return None if names is None or not self._quotes(agent) else self._refer(names)

    def _quotes(self, agent: str) -> bool:
        """Return whether the prompt of an agent may show earlier replies: a class may."""
        spec = self._specs[agent]
        shown_text = f"{spec.prompt or ''} {spec.system or ''}"
        # its delegates are called with what it sees
        return spec.class_ is not None or bool(delegates(spec)) or "team_context" in shown_text

    def _step(self, step: AnyStep) -> Any:
        match step:
            case CallStep():
                fields = {"call": self._agent(step.call), "unless": self._condition(step.unless)}
                return {**fields, "sees": self._sees(step.sees, step.call), "id": self._id(step.id)}
            case VoteStep():
                vote = step.vote
                voters = [self._agent(vote), step.n] if isinstance(vote, str) else self._refer(vote)
                best = None if step.best is None else self._agent(step.best)
                # who chooses reads the votes
                sees = self._sees(step.sees, vote) if isinstance(vote, str) else None
                return {"vote": voters, "best": best, "sees": sees, "id": self._id(step.id)}
            case SpawnStep():
                keys = step.spawn
                tasks = [*self._refer([keys.of]), self._agent(keys.agent), keys.max, keys.depth]
                return {"spawn": tasks, "sees": self._sees(step.sees, keys.agent), "id": self._id(step.id)}
            case LoopStep():
                return {"loop": step.loop, "do": self.steps(step.do)}
            case IfStep():
                condition = self._condition(step.if_)
                return {"if": condition, "do": self.steps(step.do), "else": self.steps(step.else_)}
            case ParallelStep():
                return {"parallel": [self.steps(branch) for branch in step.parallel]}
            case StopStep():
                return {"stop": self._condition(step.stop)}

    def _condition(self, condition: Condition | None) -> Any:
        if condition is None:
            return None
        if condition.loop is not None:
            return {"loop": condition.loop}
        if condition.of is None:
            subject: list[Any] = [condition.observation]
        else:
            subject = [*self._refer([condition.of]), condition.field]
        comparison = condition.comparison
        if comparison in ("is_", "in_"):  # `is` is `in` with one value
            values = [condition.is_] if comparison == "is_" else condition.in_
            return {"subject": subject, "in": sorted(set(map(_compared, values)))}
        return {"subject": subject, comparison: _compared(getattr(condition, comparison, None))}


def _renamed(value: Any, numbers: Mapping[str, str]) -> Any:
    """Return a value with numbers for the names of steps; those that nothing refers to have none."""
    if isinstance(value, _Name):
        return numbers.get(value)
    if isinstance(value, list):
        return [_renamed(item, numbers) for item in value]
    if not isinstance(value, dict):
        return value
    items = {name: _renamed(item, numbers) for name, item in value.items()}
    if items.get("sees"):
        items["sees"].sort()
    return items


def _compared(value: Any) -> str:
    """Return a value of a condition as it is compared: 7 as 7.0, texts without white space around
    them.
    """
    if isinstance(value, str):
        return f"text {value.strip()}"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"{value!r}"


def _answer(answer: AgentAnswer) -> Any:
    kind = answer.kind
    match kind:
        case "verdict":
            verdict = answer.verdict
            words = [sorted(set(map(verdict_word, w))) for w in (verdict.approve, verdict.reject)]
            return {kind: [verdict.tag.lower(), *words, verdict.fallback]}
        case "code":
            return {kind: sorted({name.lower() for name in answer.code})}
        case "choice":
            return {kind: sorted(answer.choice)}
        case "tag":
            return {kind: answer.tag.lower()}
    return kind


def _shows_names(agent: AgentSpec) -> bool:
    """Return whether an agent's prompt may show the names of others: a class may."""
    if agent.class_ is not None or agent.quote is None:
        return True
    return "{role}" in agent.quote.entry or "{agent}" in agent.quote.entry
