"""The steps of a team from a flow of Open Agent Spec.

Control edges decide the steps: a loop is an edge back, a condition a BranchingNode. A node whose
`metadata.verl_mas` says which agent it calls takes conditions, answers and quotes from there; any
other is read by the rules of the format, if a team has an exact counterpart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.workflows.graph.agent_spec import (
    BRANCH_INPUT,
    DEFAULT_BRANCH,
    FACTS,
    NEXT_BRANCH,
    VOTE_TOOL,
    Component,
    Components,
    Flow,
    placeholders,
    prompt_of,
)
from agent_system.workflows.graph.agent_spec_returned import ReturnReader
from agent_system.workflows.graph.checks import MAX_NESTING, MAX_STEPS, PROMPT_VARIABLES
from agent_system.workflows.graph.control import BREAK, NEXT, Loop, Meetings
from agent_system.workflows.graph.source import TeamSource, short

CALLS = ("LlmNode", "AgentNode")
CONDITIONS = ("if", "unless", "stop")
Steps = list[dict[str, Any]]


def team_of(source: TeamSource, max_loops: int = 0) -> TeamSource:
    """Return the team that a file of Open Agent Spec describes, as the text of a team file would.

    Args:
        source: the file.
        max_loops: rounds of a loop that has no limit of its own; 0: refuse it.

    Raises:
        AgentSystemError: what has no exact counterpart in a team, in one line with the component,
            its type and what to do.
    """
    value = _TeamReader(Components(source), max_loops).team()
    return TeamSource(f"{source.name}, read as a team", value)


@dataclass(frozen=True, eq=False)
class _Instance:
    """A flow where it is run: the root, or inside a node of another one.

    Attributes:
        flow: the flow.
        outer: the flow around it; None for the root.
        node: the node of that flow.
        depth: number of flows around.
        inner: instances of its own nodes' flows.
    """

    flow: Flow
    outer: _Instance | None = None
    node: int = 0
    depth: int = 0
    inner: dict[int, list[_Instance]] = field(default_factory=dict)

    def repeats(self) -> bool:
        """Return whether it may run more than once in a turn: a loop is around it."""
        if self.outer is None:
            return False
        return bool(self.outer.flow.behind[self.node] >> self.node & 1) or self.outer.repeats()


@dataclass(frozen=True)
class _Region:
    """The body of a loop, or a whole flow.

    Attributes:
        flow: the flow.
        loop: the loop; None for the whole flow.
        exit: where the loop leads to.
        is_root: it is the whole file, whose `stop` outside of loops ends the turn.
    """

    flow: Flow
    loop: Loop | None = None
    exit: int = 0
    is_root: bool = False

    def target(self, node: int) -> int:
        """Return a target of a control edge as one of this region."""
        if self.loop is None:
            ends = (self.flow.end,) if self.is_root else (self.flow.end, self.flow.stopped)
            return NEXT if node in ends else BREAK if node == self.flow.stopped else node
        if node == self.loop.head:
            return NEXT
        return node if self.loop.body >> node & 1 else BREAK

    def meetings(self) -> Meetings:
        """Return where its branches meet."""
        body = -1 if self.loop is None else self.loop.body
        order = [node for node in self.flow.order if body >> node & 1]
        targets = {n: [self.target(edge.target) for edge in self.flow.edges[n].values()] for n in order}
        return Meetings(targets, order)


@dataclass
class _Place:
    """Where steps are read.

    Attributes:
        instance: the flow.
        region: the body of the loop around, or the flow.
        meetings: where the region's branches meet.
        depth: number of steps around.
    """

    instance: _Instance
    region: _Region
    meetings: Meetings
    depth: int

    @property
    def flow(self) -> Flow:
        """The flow."""
        return self.instance.flow

    def deeper(self) -> _Place:
        """Return the place inside of a step."""
        return _Place(self.instance, self.region, self.meetings, self.depth + 1)


class _TeamReader:
    """Reads a team.

    Attributes:
        agents: the agents by name.
    """

    def __init__(self, components: Components, max_loops: int) -> None:
        self._all = components
        self._max_loops = max_loops
        self._count = 0
        self._instances = 0
        self._ids: dict[tuple[_Instance, int], str] = {}
        self.agents: dict[str, dict[str, Any]] = {}
        self._facts = components.facts(components.root)
        self._root = self._instance(components.root, None, 0, 0)

    def team(self) -> dict[str, Any]:
        """Return the content of the team file."""
        steps = self._whole(self._root, 0)
        team: dict[str, Any] = {"team": self._facts.get("team", 1), "agents": self.agents, "do": steps}
        if "return" in self._facts:
            team["return"] = self._facts["return"]
        else:
            team["return"] = ReturnReader(self._all, self._root.flow, self._origins_of_root).read()
        if "memory" in self._facts or not self._facts:
            team["memory"] = self._facts.get("memory", "none")
        return team

    def _error(self, part: Component, message: str) -> AgentSystemError:
        return self._all.error(part, message)

    # flows and regions

    def _instance(self, part: Component, outer: _Instance | None, node: int, depth: int) -> _Instance:
        self._instances += 1
        if depth > MAX_NESTING or self._instances > MAX_STEPS:
            what = f"more than {MAX_STEPS} flows" if depth <= MAX_NESTING else "flows that contain each other"
            raise self._error(part, f"{what}; a team is a finite list of steps")
        return _Instance(self._all.flow(part), outer, node, depth)

    def inner(self, instance: _Instance, number: int) -> list[_Instance]:
        """Return the flows inside a node."""
        if number not in instance.inner:
            node = instance.flow.nodes[number]
            values = (
                self._all.get(node, "subflows", list)
                if node["component_type"] == "ParallelFlowNode"
                else [node.get("subflow")]
            )
            parts = [self._all.component(value, ("Flow",), "a subflow") for value in values]
            instance.inner[number] = [
                self._instance(part, instance, number, instance.depth + 1) for part in parts
            ]
        return instance.inner[number]

    def _whole(self, instance: _Instance, depth: int) -> Steps:
        """Return the steps of a flow."""
        region = _Region(instance.flow, is_root=instance.outer is None)
        place = _Place(instance, region, region.meetings(), depth)
        return self._sequence(place, self._next(place, instance.flow.start), NEXT)

    def _sequence(self, place: _Place, node: int | None, follow: int | None) -> Steps:
        """Return the steps from a node to `follow`."""
        if place.depth > MAX_NESTING:
            raise self._error(place.flow.part, f"steps are nested more than {MAX_NESTING} deep")
        steps: Steps = []
        while node != follow and node is not None:
            if node == BREAK:
                self._add(steps, {"stop": "always"}, place)
                break
            if node == NEXT:
                raise self._error(place.flow.part, "its branches do not meet as those of nested steps do")
            loop = place.flow.loops.get(node)
            if loop is not None and loop is not place.region.loop:
                node = self._loop(steps, place, loop)
            else:
                node = self._node(steps, place, node, follow)
        return steps

    def _add(self, steps: Steps, step: dict[str, Any], place: _Place) -> None:
        self._count += 1
        if self._count > MAX_STEPS:
            raise self._error(place.flow.part, f"more than {MAX_STEPS} steps")
        steps.append(step)

    def _loop(self, steps: Steps, place: _Place, loop: Loop) -> int:
        """Add a loop and return where it leads to."""
        flow = place.flow
        head = flow.nodes[loop.head]
        if not loop.exits:
            raise self._error(
                head, "the loop that begins at it has no end; add a BranchingNode that leaves it"
            )
        left = dict.fromkeys(target for _, target in loop.exits)
        if len(left) > 1:
            source, target = next(edge for edge in loop.exits if edge[1] == list(left)[1])
            raise self._error(
                self._edge(flow, source, target).part,
                f"it leaves the loop that begins at {short(head['name'])} for a second place; all "
                "edges out of a loop of a team lead to one",
            )
        limits = [self._limit(flow, *edge) for edge in loop.back]
        if any(limit != limits[0] for limit in limits):
            raise self._error(head, f"the edges back to it have different metadata.{FACTS}.max")
        region = _Region(flow, loop, next(iter(left)))
        inside = _Place(place.instance, region, region.meetings(), place.depth + 1)
        body: Steps = []
        first = self._node(body, inside, loop.head, NEXT)
        body += self._sequence(inside, first, NEXT)
        if not body:
            raise self._error(head, "the loop that begins at it calls no agent")
        self._add(steps, {"loop": limits[0], "do": body}, place)
        return place.region.target(region.exit)

    def _edge(self, flow: Flow, source: int, target: int) -> Any:
        return next(edge for edge in flow.edges[source].values() if edge.target == target)

    def _limit(self, flow: Flow, source: int, target: int) -> Any:
        """Return the number of rounds of a loop, by an edge back."""
        part = self._edge(flow, source, target).part
        limit = self._all.facts(part).get("max", self._max_loops or None)
        if limit is None:
            names = " to ".join(short(flow.nodes[n]["name"]) for n in (source, target))
            raise self._error(
                part,
                f"it makes a loop without a limit, from {names}; write metadata.{FACTS}.max into it, or set "
                "max_loops",
            )
        return limit

    # nodes

    def _next(self, place: _Place, node: int) -> int:
        """Return where a node without branches leads to."""
        edges = place.flow.edges[node]
        if len(edges) != 1:
            part = place.flow.nodes[node]
            raise self._error(part, f"it must have one control edge to the next node, found {len(edges)}")
        return place.region.target(next(iter(edges.values())).target)

    def _node(self, steps: Steps, place: _Place, number: int, follow: int | None) -> int | None:
        """Add the steps of a node and return the next one."""
        node = place.flow.nodes[number]
        kind = node["component_type"]
        if kind == "BranchingNode":
            return self._branching(steps, place, number, follow)
        if "vote" in self._all.facts(node):
            return self._vote(steps, place, number)
        if kind in CALLS:
            self._add(steps, self.call(place.instance, number), place)
        elif kind == "ParallelFlowNode":
            self._parallel(steps, place, number)
        elif kind == "FlowNode":
            (inner,) = self.inner(place.instance, number)
            names = {self._branch_name(inner.flow.nodes[end]) for end in inner.flow.ends()}
            if len(names) > 1:
                raise self._error(node, "its flow has several branches; put the flow's nodes in its place")
            steps += self._whole(inner, place.depth + 1)
        else:
            raise self._error(node, self._all.refusal(kind))
        return self._next(place, number)

    def _branch_name(self, end: Component) -> str:
        return str(self._all.get(end, "branch_name", str, NEXT_BRANCH))

    def _parallel(self, steps: Steps, place: _Place, number: int) -> None:
        branches = [self._whole(inner, place.depth + 1) for inner in self.inner(place.instance, number)]
        if not all(branches):
            raise self._error(place.flow.nodes[number], "a flow of it calls no agent")
        if len(branches) == 1:
            steps += branches[0]
        elif branches:
            self._add(steps, {"parallel": branches}, place)

    def _vote(self, steps: Steps, place: _Place, number: int) -> int:
        """Add a vote, which is a chain of nodes up to the tool that counts."""
        first = place.flow.nodes[number]
        step = dict(self._all.get(self._all.facts(first), "vote", dict))
        while True:
            node = place.flow.nodes[number]
            if node["component_type"] == "ParallelMapNode":
                (inner,) = self.inner(place.instance, number)
                calls = self._whole(inner, place.depth + 1)
                if len(calls) != 1 or "call" not in calls[0]:
                    raise self._error(node, "the flow of a vote has one call")
                step["vote"] = calls[0]["call"]
            elif node["component_type"] in CALLS:
                step["best"] = self.call(place.instance, number)["call"]
            elif node["component_type"] == "ToolNode":
                tool = self._all.component(node.get("tool"), ("ServerTool", "ClientTool"), "a tool")
                if tool["name"].startswith(VOTE_TOOL):
                    break
                copies = self._all.properties(node, "inputs").get("n", {})
                step["n"] = copies.get("default")
            else:
                raise self._error(node, "no part of a vote")
            number = self._next(place, number)
            if number < 0 or "part" not in self._all.facts(place.flow.nodes[number]):
                raise self._error(node, f"a vote ends with a ToolNode of {VOTE_TOOL}")
        self._add(steps, step, place)
        return self._next(place, number)

    # branches

    def _branching(self, steps: Steps, place: _Place, number: int, follow: int | None) -> int | None:
        """Add the steps of a BranchingNode and return the node where its branches meet."""
        node = place.flow.nodes[number]
        facts = self._all.facts(node)
        mapping = self._all.get(node, "mapping", dict)
        for branch in mapping.values():
            if not isinstance(branch, str):
                raise self._error(node, f"mapping must lead to names of branches, found {short(branch)}")
        targets = {
            branch: place.region.target(edge.target) for branch, edge in place.flow.edges[number].items()
        }
        names = {*mapping.values(), DEFAULT_BRANCH}
        if names != set(targets):
            odd = sorted(names ^ set(targets))[0]
            what = "has no control edge" if odd in names else "is none of its mapping"
            raise self._error(node, f"the branch {short(odd)} {what}")
        default = targets[DEFAULT_BRANCH]
        if "nothing" in facts:
            return default
        if "rounds" in facts:
            if default != NEXT or any(target != BREAK for target in targets.values() if target != NEXT):
                raise self._error(node, "it ends a round: its default branch leads back, the other one out")
            return NEXT
        keys: dict[int, list[str]] = {}
        for key, branch in mapping.items():
            if targets[branch] != default:
                keys.setdefault(targets[branch], []).append(key)
        ways = [
            _Way(self._condition(place.instance, number, facts, keys[target]), target)
            for target in sorted(keys, key=lambda target: target != BREAK)
        ]
        kind = next((name for name in CONDITIONS if name in facts), "")
        named = [n for n, other in enumerate(place.flow.nodes) if other.get("id") == facts.get("meet")]
        meeting = place.meetings.of(number, named[0] if named and "meet" in facts else None)
        return self._ways(steps, place, _Fork(node, kind, ways, default, meeting), follow)

    def _condition(
        self, instance: _Instance, number: int, facts: Mapping[str, Any], keys: Sequence[str]
    ) -> Any:
        """Return the condition under which a BranchingNode takes the branch of these keys."""
        for name in CONDITIONS:
            if name in facts:
                return facts[name]
        node = instance.flow.nodes[number]
        titles = self._all.properties(node, "inputs")
        if len(titles) > 1:
            raise self._error(node, f"it must have one input, found {len(titles)}")
        name = next(iter(titles), BRANCH_INPUT)
        sources = self.sources(instance, number, name)
        compared = {"is": keys[0]} if len(keys) == 1 else {"in": list(keys)}
        if len(sources) != 1:
            raise self._error(
                node,
                f"its input must come from one node, found {len(sources)}; a condition is about one step",
            )
        self._check_compared(instance, number, name)
        kind, source = sources[0]
        if kind == "step":
            return {"of": source, **compared}
        if self.variable(source) in PROMPT_VARIABLES:
            raise self._error(node, f"it compares {short(source)}, the task; a condition is about a step or "
                              "another input of the flow")  # fmt: skip
        return {"observation": source, **compared}

    def _check_compared(self, instance: _Instance, number: int, name: str) -> None:
        """Raise unless a condition compares as a BranchingNode does, also where the node before it
        has not run: the condition does not hold there.
        """
        node = instance.flow.nodes[number]
        mapping = self._all.get(node, "mapping", dict)
        for key in mapping:
            if key != key.strip():
                raise self._error(
                    node, f"a condition compares texts without spaces around; write {short(key.strip())} for "
                    f"the key {short(key)} of its mapping"
                )  # fmt: skip
        if instance.flow.is_fed(number, name):
            return
        item = self._all.properties(node, "inputs").get(name, {})
        if "default" not in item or instance.repeats():
            raise self._error(node, self._unfed(name))
        default = item["default"]
        branch = mapping.get(default, DEFAULT_BRANCH) if isinstance(default, str) else default
        if branch != DEFAULT_BRANCH:
            raise self._error(
                node,
                f"its input {short(name)} has the default {short(default)}, but a condition does not hold "
                "where the node before it has not run; remove the default and let that node run on every way",
            )

    @staticmethod
    def _unfed(name: str) -> str:
        return (
            f"the input {short(name)} has no value on a way past the node that gives it; let that node run "
            "on every way"
        )

    def _ways(self, steps: Steps, place: _Place, fork: _Fork, follow: int | None) -> int | None:
        """Add the steps of the branches that are left, the first before the others."""
        if not fork.ways:
            return fork.default
        way = fork.ways[0]
        others = _Fork(fork.node, fork.kind, fork.ways[1:], fork.default, fork.meeting)
        if way.target == BREAK and fork.kind in ("", "stop"):
            self._add(steps, {"stop": way.condition}, place)
            return self._ways(steps, place, others, follow)
        inside = place.deeper()
        then = self._sequence(inside, way.target, fork.meeting)
        otherwise: Steps = []
        node = self._ways(otherwise, inside, others, fork.meeting)
        otherwise += self._sequence(inside, node, fork.meeting)
        facts = self._all.facts(fork.node)
        if then:
            arms = {"do": then, **({"else": otherwise} if otherwise or "else" in facts else {})}
            self._add(steps, {"if": way.condition, **arms}, place)
        elif len(otherwise) == 1 and "call" in otherwise[0] and otherwise[0].get("unless") is None:
            steps.append({**otherwise[0], "unless": way.condition})
        elif otherwise and fork.meeting == NEXT and place.region.loop is not None:
            # the end of the last round is the end of the loop, so that this does nothing else
            self._add(
                steps, {"if": way.condition, "do": [{"stop": {"loop": "last"}}], "else": otherwise}, place
            )
        elif otherwise and fork.meeting == NEXT == follow and place.instance.outer is None:
            self._add(steps, {"stop": way.condition}, place)
            steps += otherwise
        elif otherwise:
            raise self._error(
                fork.node, "a branch of it calls no agent and the other one has several steps; add a call"
            )
        return fork.meeting

    # calls

    def call(self, instance: _Instance, number: int) -> dict[str, Any]:
        """Return the step of an LlmNode or an AgentNode, and note its agent."""
        node = instance.flow.nodes[number]
        facts = self._all.facts(node)
        part = node
        if node["component_type"] == "AgentNode":
            part = self._all.component(node.get("agent"), ("Agent",), "an agent of a team")
        template = self._all.get(part, "system_prompt" if part is not node else "prompt_template", str)
        tools = self._tools(part) if part is not node else []
        if "call" in facts:
            self._note(part, facts["call"], self._agent_of_team(part, facts["call"], template, tools))
            return {key: value for key, value in facts.items() if key != "part"}
        self._check_plain(node, part)
        agent, sees = self._agent(instance, number, part, template)
        self._note(part, part["name"], agent | ({"tools": tools} if tools else {}))
        step: dict[str, Any] = {"call": part["name"], "id": self.step_id(instance, number)}
        return step | ({"sees": sees} if sees else {})

    def _tools(self, agent: Component) -> list[str]:
        for key in ("toolboxes", "transforms"):
            if self._all.get(agent, key, list, []):
                raise self._error(agent, f"an agent of a team has no {key}; remove them")
        parts = [
            self._all.component(value, ("ServerTool", "ClientTool"), "a tool")
            for value in self._all.get(agent, "tools", list, [])
        ]
        return [part["name"] for part in parts]

    def _check_plain(self, node: Component, part: Component) -> None:
        """Raise for what a call of a team has not."""
        outputs = self._all.properties(node if node.get("outputs") else part, "outputs")
        if len(outputs) > 1 or any(p.get("type", "string") != "string" for p in outputs.values()):
            raise self._error(node, "it has structured outputs; a call of a team has one text")
        if any(name != NEXT_BRANCH for name in self._all.get(node, "branches", list, [])):
            raise self._error(node, "its agent chooses the branch; use a BranchingNode")
        if part is not node and self._all.get(part, "human_in_the_loop", bool, True):
            raise self._error(part, "a team has no user to ask; set human_in_the_loop to false")

    def _agent_of_team(
        self, part: Component, name: Any, template: str, tools: Sequence[str]
    ) -> dict[str, Any]:
        """Return an agent that `metadata.verl_mas` of the flow describes."""
        agents = self._facts.get("agents", {})
        agent = agents.get(name) if isinstance(agents, dict) and isinstance(name, str) else None
        if not isinstance(agent, dict):
            raise self._error(
                part, f"metadata.{FACTS} of the flow has no agent {short(name)}, which the node calls"
            )
        if "class" in agent:
            return agent
        tool_names = {"tools": list(tools)} if tools else {}
        prompt = prompt_of(template, str)
        if "system" not in agent:
            return {**agent, "prompt": prompt, **tool_names}
        system = agent["system"]
        if not isinstance(system, str) or not prompt.startswith(f"{system}\n\n"):
            raise self._error(
                part, f"its system_prompt does not begin with the system of {short(name)} in metadata.{FACTS}"
            )
        return {**agent, "prompt": prompt[len(system) + 2 :], **tool_names}

    def _note(self, part: Component, name: str, agent: dict[str, Any]) -> None:
        if self.agents.setdefault(name, agent) != agent:
            raise self._error(
                part, f"another node calls an agent {short(name)} with another prompt; give it another name"
            )

    def _agent(
        self, instance: _Instance, number: int, part: Component, template: str
    ) -> tuple[dict[str, Any], list[str]]:
        """Return an agent for a template of inputs, and the steps whose replies its prompt has."""
        node = instance.flow.nodes[number]
        names: dict[str, str] = {}
        sees: dict[str, None] = {}
        quoted: list[str] = []
        agent: dict[str, Any] = {"prompt": ""}
        defaults = self._all.properties(part, "inputs") | self._all.properties(node, "inputs")
        for name in placeholders(template):
            sources = self.sources(instance, number, name)
            kinds = {kind for kind, _ in sources}
            if kinds == {"step"}:
                quoted.append(name)
                sees |= dict.fromkeys(step for _, step in sources)
                empty = defaults.get(name, {}).get("default")
                if not instance.flow.is_fed(number, name):
                    if empty is None:
                        raise self._error(node, f"{self._unfed(name)}, or give the input a default")
                    if instance.repeats():
                        # the team would quote the reply of an earlier run of the flow
                        raise self._error(node, f"{self._unfed(name)}: its flow runs in a loop")
                if not isinstance(empty, str | None):
                    raise self._error(node, f"the default of the input {short(name)} must be a text")
                agent["quote"] = {"entry": "{text}", "last": 1, "empty": empty or ""}
                names[name] = "team_context"
            elif kinds == {"start"} and len(sources) == 1:
                names[name] = self.variable(sources[0][1])
            else:
                what = "no data edge" if not sources else "data edges from the start and from other nodes"
                raise self._error(
                    node, f"the input {short(name)} has {what}; a prompt has a text of one kind there"
                )
        if len(quoted) > 1:
            raise self._error(
                node,
                f"its prompt has replies in {len(quoted)} places ({', '.join(quoted)}); that of a team has "
                "them in one, {team_context}",
            )
        variables = sorted({name for name in names.values() if name not in PROMPT_VARIABLES})
        agent["prompt"] = prompt_of(template, names.get)
        return agent | ({"variables": variables} if variables else {}), list(sees)

    def variable(self, name: str) -> str:
        """Return the variable of a prompt for an input of the whole flow: the only one is the task."""
        flow = self._root.flow
        start = flow.nodes[flow.start]
        outer = self._all.properties(flow.part, "inputs")
        titles = self._all.properties(start, "inputs") or self._all.properties(start, "outputs") or outer
        if titles and name not in titles:
            raise self._error(start, f"a data edge begins at its output {short(name)}, which it has not")
        if len(titles) <= 1:
            return "env_prompt"
        if name not in PROMPT_VARIABLES and "default" in outer.get(name, {}) | titles[name]:
            raise self._error(
                start, f"the input {short(name)} has a default, but an observation has no defaults; remove it"
            )
        return name

    def step_id(self, instance: _Instance, number: int) -> str:
        """Return the name of the step of a node."""
        key = (instance, number)
        if key not in self._ids:
            facts = self._all.facts(instance.flow.nodes[number])
            name = facts.get("id")
            if not isinstance(name, str):
                plain = re.sub(r"[^A-Za-z0-9_-]+", "_", instance.flow.nodes[number]["name"])[:48]
                name = plain if plain[:1].isalpha() else f"step_{plain}".rstrip("_")
            taken_names = set(self._ids.values())
            unique = name
            while unique in taken_names:
                unique = f"{name}_{len(taken_names) + 1}"
                name = f"{name}_"
            self._ids[key] = unique
        return self._ids[key]

    # data

    def sources(self, instance: _Instance, number: int, name: str) -> list[tuple[str, str]]:
        """Return where the values of an input come from: `("start", input)` or `("step", name)`."""
        return self.origins(self._outputs(instance, number, name))

    def origins(self, outputs: Sequence[tuple[_Instance, int, str]]) -> list[tuple[str, str]]:
        """Return where outputs of nodes come from. Raises AgentSystemError where the newest reply of
        these steps is another text than the one that the data edges carry.
        """
        result: dict[tuple[str, str], None] = {}
        visited: set[tuple[_Instance, int, str]] = set()
        stack = list(reversed(outputs))
        while stack:
            here = stack.pop()
            if here in visited:
                continue
            visited.add(here)
            inside, node, output = here
            part = inside.flow.nodes[node]
            kind = part["component_type"]
            if kind == "StartNode" and inside.outer is None:
                result["start", output] = None
            elif kind == "StartNode" and inside.outer is not None:
                stack += self._passed_on(inside.outer, inside.node, output)
            elif kind in CALLS:
                result["step", self.step_id(inside, node)] = None
            elif kind in ("FlowNode", "ParallelFlowNode"):
                inner = self._giving(inside, node, output)
                for end in inner.flow.ends():
                    stack += self._passed_on(inner, end, output)
            else:
                raise self._error(part, "no node reads its output in a team; use an LlmNode")
        return list(result)

    def _origins_of_root(self, node: int, output: str) -> list[tuple[str, str]]:
        return self.origins([(self._root, node, output)])

    def _outputs(self, instance: _Instance, number: int, name: str) -> list[tuple[_Instance, int, str]]:
        """Return the outputs that data edges carry to an input."""
        flow = instance.flow
        edges = list(dict.fromkeys(flow.data.get((number, name), ())))
        sources = [source for source, _ in edges]
        what = None
        if len(set(sources)) < len(sources):
            what = "two data edges from one node"
        elif instance.outer is not None and flow.start in sources and len(sources) > 1:
            what = "data edges from the start and from other nodes of a subflow"
        if what is not None:
            raise self._error(
                flow.nodes[number], f"the input {short(name)} has {what}; it must have one of them"
            )
        return [(instance, source, output) for source, output in edges]

    def _passed_on(self, instance: _Instance, number: int, name: str) -> list[tuple[_Instance, int, str]]:
        """Return the outputs that a node with a flow passes to its StartNode, or an EndNode out."""
        flow = instance.flow
        node = flow.nodes[number]
        if not flow.is_fed(number, name):
            raise self._error(node, self._unfed(name))
        outputs = self._outputs(instance, number, name)
        sources = [source for _, source, _ in outputs]
        if node["component_type"] == "EndNode" and flow.start in sources:
            raise self._error(
                node,
                f"it hands out the input {short(name)} of its flow; take it from the node before the flow",
            )
        if number in sources:
            raise self._error(
                node, f"the input {short(name)} is its own output; put the flow's nodes in its place"
            )
        return outputs

    def _giving(self, instance: _Instance, number: int, output: str) -> _Instance:
        """Return the flow inside a node that gives an output."""
        node = instance.flow.nodes[number]
        inner: list[_Instance] = []
        for one in self.inner(instance, number):
            edges = {frozenset(one.flow.data.get((end, output), ())) for end in one.flow.ends()}
            if len(edges) > 1:
                raise self._error(
                    node,
                    f"EndNodes of its flow hand out {short(output)} of different nodes; put the flow's nodes "
                    "in its place",
                )
            inner += [one] * any(edges)
        if len(inner) != 1:
            raise self._error(
                node, f"its output {short(output)} must come from a data edge of one flow, found {len(inner)}"
            )
        return inner[0]


@dataclass(frozen=True)
class _Way:
    """A branch, and the condition under which it is taken."""

    condition: Any
    target: int


@dataclass(frozen=True)
class _Fork:
    """A BranchingNode with the branches that are left.

    Attributes:
        node: the node.
        kind: if | unless | stop, what it was written for, or empty.
        ways: the branches.
        default: the target of the default branch.
        meeting: where all of them meet.
    """

    node: Component
    kind: str
    ways: Sequence[_Way]
    default: int
    meeting: int | None
