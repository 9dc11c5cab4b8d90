"""Open Agent Spec: the parts of a file as Python objects, and templates in both forms.

A flow is a graph of nodes (https://oracle.github.io/agent-spec, versions 25.4.1 to 26.3.1). The
steps of a team are read from it by `agent_spec_reader.py` and written by `agent_spec_writer.py`.
What a node of a team has beside the fields of the format stands in `metadata.verl_mas`.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.workflows.graph.control import ControlGraph, Irreducible, Loop
from agent_system.workflows.graph.source import KeyPath, TeamSource, short
from verl.utils.names import did_you_mean

# The version that is written: the first with parallel nodes.
VERSION = "25.4.2"
VERSIONS = ("25.4.1", VERSION, "26.1.0", "26.1.2", "26.3.1")
FACTS = "verl_mas"
MAX_NODES = 1024
NEXT_BRANCH = "next"
DEFAULT_BRANCH = "default"
BRANCH_INPUT = "branching_mapping_key"
REPLY = "generated_text"
# Tools that the vote of a written file names: n copies of a text, and the most frequent reply.
COPIES_TOOL = "verl_mas_copies"
VOTE_TOOL = "verl_mas_vote"

_COMMON = ("component_type", "id", "name", "description", "metadata", "$referenced_components")
_NODE = (*_COMMON, "inputs", "outputs", "branches")
_TOOL = (*_COMMON, "inputs", "outputs", "requires_confirmation")
FIELDS: Mapping[str, tuple[str, ...]] = {
    "Flow": (
        *_COMMON, "inputs", "outputs", "start_node", "nodes", "control_flow_connections",
        "data_flow_connections",
    ),
    "StartNode": _NODE,
    "EndNode": (*_NODE, "branch_name"),
    "LlmNode": (*_NODE, "llm_config", "prompt_template"),
    "AgentNode": (*_NODE, "agent"),
    "BranchingNode": (*_NODE, "mapping"),
    "FlowNode": (*_NODE, "subflow"),
    "ParallelFlowNode": (*_NODE, "subflows"),
    "ParallelMapNode": (*_NODE, "subflow", "reducers"),
    "ToolNode": (*_NODE, "tool"),
    "Agent": (
        *_COMMON, "inputs", "outputs", "llm_config", "system_prompt", "tools", "toolboxes",
        "human_in_the_loop", "transforms",
    ),
    "ServerTool": _TOOL,
    "ClientTool": _TOOL,
    "ControlFlowEdge": (*_COMMON, "from_node", "from_branch", "to_node"),
    "DataFlowEdge": (*_COMMON, "source_node", "source_output", "destination_node", "destination_input"),
}  # fmt: skip
_STEPS = "LlmNode, AgentNode, BranchingNode, FlowNode and ParallelFlowNode"
# What to do about a component of the format that no step of a team is like.
_OTHERS = {
    "MapNode": "a team calls a fixed number of times: write the calls out, or {vote: Agent, n: 3}",
    "ParallelMapNode": "a team calls a fixed number of times: write the calls out, or {vote: Agent, n: 3}",
    "ToolNode": "a team has no step without an agent: give the tool to an Agent",
    "ApiNode": "a file calls no address: give a tool to an Agent",
    "InputMessageNode": "a team has no user to ask: make the text an input of the flow",
    "OutputMessageNode": "a team has no user to tell: make the text an output of the flow",
    "CatchExceptionNode": "a team has no exceptions: use a FlowNode",
    "Swarm": "a team has a fixed order of calls: use a Flow",
    "ManagerWorkers": "a team has a fixed order of calls: use a Flow",
    "Agent": "a team is a Flow: use one with an AgentNode",
}

_PLACEHOLDER = re.compile(r"{{\s*(\w+)\s*}}")

Component = Mapping[str, Any]


def is_agent_spec(value: Any) -> bool:
    """Return whether a value of JSON types is a component of Open Agent Spec, by its keys."""
    keys = ("component_type", "agentspec_version", "$component_ref", "$referenced_components")
    return isinstance(value, dict) and "team" not in value and any(key in value for key in keys)


def prompt_of(template: str, name_of: Callable[[str], str | None]) -> str:
    """Return a prompt of a team for a template of Open Agent Spec.

    Args:
        template: the template, with `{{name}}` for inputs.
        name_of: the variable for an input, or None for a text that stays as it is.
    """
    text = ""
    for position, part in enumerate(_PLACEHOLDER.split(template)):
        name = name_of(part) if position % 2 else None
        if name is not None:
            text += f"{{{name}}}"
        elif position % 2 == 0:
            text += part.replace("{", "{{").replace("}", "}}")
    return text


def template_of(prompt: str) -> str | None:
    """Return a prompt of a team as a template of Open Agent Spec; None where its text would be
    taken for an input, for which the format has no other spelling.
    """
    text = ""
    for literal, name, _, _ in string.Formatter().parse(prompt):
        text += literal
        if name is not None:
            text += f"{{{{{name}}}}}"
    return text if prompt_of(text, str) == prompt_of_parts(prompt) else None


def prompt_of_parts(prompt: str) -> str:
    """Return a prompt with its literal braces in the one way in which `prompt_of` writes them."""
    parts = string.Formatter().parse(prompt)
    return "".join(
        literal.replace("{", "{{").replace("}", "}}") + ("" if name is None else f"{{{name}}}")
        for literal, name, _, _ in parts
    )


def placeholders(template: str) -> list[str]:
    """Return the inputs of a template, each once, in the order in which they appear."""
    return list(dict.fromkeys(_PLACEHOLDER.findall(template)))


@dataclass(frozen=True)
class Edge:
    """A control edge: where a branch of a node leads.

    Attributes:
        target: the node; `Flow.end` for a regular end, `Flow.stopped` for one of a `stop`.
        number: the node, an EndNode too.
        part: the edge in the file.
    """

    target: int
    number: int
    part: Component


@dataclass(frozen=True)
class Flow:
    """A flow that was read: nodes by number.

    Attributes:
        part: the flow in the file.
        nodes: the nodes in the file.
        start: number of the StartNode.
        edges: branch -> edge, of every node.
        data: (node, input) -> the outputs that reach it: (node, output).
        loops: by their heads.
        order: the nodes that are reached, in reverse postorder.
        behind: the set of nodes behind every node.
    """

    part: Component
    nodes: Sequence[Component]
    start: int
    edges: Sequence[Mapping[str, Edge]]
    data: Mapping[tuple[int, str], Sequence[tuple[int, str]]]
    loops: Mapping[int, Loop] = field(default_factory=dict)
    order: Sequence[int] = ()
    behind: Sequence[int] = ()

    @property
    def end(self) -> int:
        """The number that stands for every EndNode as a target."""
        return len(self.nodes)

    @property
    def stopped(self) -> int:
        """The number that stands for an EndNode of a `stop`."""
        return len(self.nodes) + 1

    def ends(self) -> Iterator[int]:
        """Yield the EndNodes that a control edge leads to."""
        targets = {edge.number for edges in self.edges for edge in edges.values()}
        return (n for n in sorted(targets) if self.nodes[n]["component_type"] == "EndNode")

    def leads(self, node: int, target: int, without: Collection[int] = ()) -> bool:
        """Return whether a way of control edges leads from a node to another one, or to an EndNode,
        and passes none of the nodes `without`.
        """
        visited = {node}
        stack = [node]
        while stack:
            for edge in self.edges[stack.pop()].values():
                if edge.number == target:
                    return True
                if edge.number not in visited and edge.number not in without:
                    visited.add(edge.number)
                    stack.append(edge.number)
        return False

    def is_fed(self, node: int, name: str) -> bool:
        """Return whether an input has a value of a data edge on every way to its node."""
        sources = {source for source, _ in self.data.get((node, name), ())}
        return self.start in sources or not self.leads(self.start, node, sources)


class Components:
    """The components of a file."""

    def __init__(self, source: TeamSource) -> None:
        self.source = source
        self._paths: dict[int, KeyPath] = {}
        self._named: dict[str, Any] = {}
        self._flows: dict[int, Flow] = {}
        self._collect(source.value)
        self.root = self.component(source.value, ("Flow",), "the file")
        version = source.value.get("agentspec_version", VERSION)
        if version not in VERSIONS:
            raise source.error(
                ("agentspec_version",),
                f"no version {short(version)} that is read; versions: {', '.join(VERSIONS)}",
            )

    def _collect(self, value: Any) -> None:
        """Note the places of all mappings, and what can be referred to."""
        ids: dict[str, int] = {}
        stack: list[tuple[KeyPath, Any]] = [((), value)]
        while stack:
            path, here = stack.pop()
            if isinstance(here, dict):
                self._paths[id(here)] = path
                name = here.get("id")
                is_named = isinstance(name, str) and "component_type" in here
                if is_named and ids.setdefault(str(name), id(here)) != id(here):
                    raise self.source.error((*path, "id"), f"the id {short(name)} is there twice")
                others = here.get("$referenced_components", {})
                for name in others if isinstance(others, dict) else ():
                    if name in self._named:
                        raise self.source.error(
                            (*path, "$referenced_components", name),
                            f"the component {short(name)} is there twice",
                        )
                    self._named[name] = others[name]
                keys = [key for key in here if key not in ("metadata", "inputs", "outputs")]
                stack += [((*path, key), here[key]) for key in reversed(keys)]
            elif isinstance(here, list):
                stack += [((*path, number), item) for number, item in reversed(list(enumerate(here)))]

    def error(self, part: Component, message: str) -> AgentSystemError:
        """Return the error of a component: its name, its type and the message, in one line."""
        name = part.get("name")
        kind = part.get("component_type")
        kind_text = kind if isinstance(kind, str) and kind.isidentifier() and len(kind) < 64 else short(kind)
        label = f"{short(name)} ({kind_text})" if isinstance(name, str) else "it"
        return self.source.error(self._paths.get(id(part), ()), f"{label}: {message}")

    def component(self, value: Any, types: Sequence[str], what: str) -> Component:
        """Return the component that a value is or refers to. Raises AgentSystemError unless it has
        one of the types and no field that the format has not.
        """
        part: Any = value
        names: list[str] = []
        while isinstance(part, dict) and "$component_ref" in part:
            name = part["$component_ref"]
            if name in names:
                raise self.source.error(
                    self._paths[id(part)], f"the reference {short(name)} refers to itself"
                )
            if not isinstance(name, str) or name not in self._named:
                raise self.source.error(
                    self._paths[id(part)],
                    f"no component {short(name)}{did_you_mean(str(name), self._named)} in "
                    "$referenced_components",
                )
            names.append(name)
            part = self._named[name]
        if not isinstance(part, dict) or not isinstance(part.get("component_type"), str):
            place = self._paths.get(id(value), ())
            raise self.source.error(place, f"{what} must be a component with component_type")
        kind = part["component_type"]
        if kind not in types:
            raise self.error(
                part,
                f"{what} must be {' or '.join(types)}"
                if kind in FIELDS and kind not in _OTHERS
                else self.refusal(kind),
            )
        for key in part:
            if key not in FIELDS[kind] and not (key == "agentspec_version" and part is self.source.value):
                raise self.error(part, f"no field {short(key)}{did_you_mean(key, FIELDS[kind])}")
        if not isinstance(part.get("name"), str):
            raise self.error(part, f"{kind} needs a name")
        return part

    def refusal(self, kind: str) -> str:
        """Return the message for a type of component that no step of a team is like."""
        if kind in _OTHERS:
            return f"no step of a team is like it; {_OTHERS[kind]}"
        return f"not read{did_you_mean(kind, (*FIELDS, *_OTHERS))}; a team is read from {_STEPS}"

    def get(self, part: Component, key: str, kind: type[Any], default: Any = None) -> Any:
        """Return a field. Raises AgentSystemError if it has another type, or is missing and has no
        default.
        """
        value = part.get(key, default)
        value = default if value is None else value
        if not isinstance(value, kind):
            name = {str: "a text", list: "a list", dict: "a mapping", bool: "true or false"}[kind]
            raise self.error(part, f"{key} must be {name}, found {short(value)}")
        return value

    def facts(self, part: Component) -> dict[str, Any]:
        """Return `metadata.verl_mas`."""
        metadata = self.get(part, "metadata", dict, {})
        facts = metadata.get(FACTS, {})
        if not isinstance(facts, dict):
            raise self.error(part, f"metadata.{FACTS} must be a mapping, found {short(facts)}")
        return facts

    def properties(self, part: Component, key: str) -> dict[str, dict[str, Any]]:
        """Return inputs or outputs by their titles."""
        titles: dict[str, dict[str, Any]] = {}
        for item in self.get(part, key, list, []):
            if not isinstance(item, dict) or not isinstance(item.get("title"), str):
                raise self.error(part, f"{key} must be JSON schemas with a title, found {short(item)}")
            titles[item["title"]] = item
        return titles

    def flow(self, part: Component) -> Flow:
        """Return a flow with its graph checked. Raises AgentSystemError, for a loop that can be
        entered at two places with the edge that does it.
        """
        if id(part) not in self._flows:
            self._flows[id(part)] = _FlowReader(self, part).read()
        return self._flows[id(part)]


class _FlowReader:
    """Reads the nodes and edges of one flow."""

    types = tuple(kind for kind in FIELDS if kind.endswith("Node"))

    def __init__(self, components: Components, part: Component) -> None:
        self._all = components
        self._part = part
        values = components.get(part, "nodes", list)
        if len(values) > MAX_NODES:
            raise components.error(part, f"more than {MAX_NODES:,} nodes")
        self._nodes = [components.component(value, self.types, "a node") for value in values]
        self._numbers: dict[int, int] = {}
        for number, node in enumerate(self._nodes):
            if self._numbers.setdefault(id(node), number) != number:
                raise components.error(node, "the node is there twice")

    def read(self) -> Flow:
        """Return the flow."""
        starts = [n for n, node in enumerate(self._nodes) if node["component_type"] == "StartNode"]
        if len(starts) != 1:
            raise self._all.error(self._part, f"it must have one StartNode, found {len(starts)}")
        if self._number(self._part, "start_node") != starts[0]:
            raise self._all.error(self._part, "start_node must be the StartNode among the nodes")
        flow = Flow(self._part, self._nodes, starts[0], self._edges(), self._data())
        graph = ControlGraph(
            [*([edge.target for edge in edges.values()] for edges in flow.edges), [], []], flow.start
        )
        order = graph.order()
        for number, node in enumerate(self._nodes):
            if node["component_type"] != "EndNode" and number not in order:
                raise self._all.error(node, "no control edge leads to it; remove it")
        try:
            loops = graph.loops()
        except Irreducible as problem:
            source, target = problem.edge
            edge = next(edge for edge in flow.edges[source].values() if edge.target == target)
            raise self._all.error(
                edge.part,
                f"it leads into the middle of a loop, from {short(self._nodes[source]['name'])} to "
                f"{short(self._nodes[target]['name'])}; a loop of a team begins at one place",
            ) from None
        inner = [number for number in order if number < flow.end]
        return Flow(flow.part, flow.nodes, flow.start, flow.edges, flow.data, loops, inner, graph.reach())

    def _number(self, part: Component, key: str) -> int:
        """Return the number of the node that a field refers to."""
        value = part.get(key)
        if not isinstance(value, dict) or "$component_ref" not in value:
            raise self._all.error(part, f"{key} must be a $component_ref to one of the nodes")
        node = self._all.component(value, self.types, key)
        if id(node) not in self._numbers:
            raise self._all.error(part, f"{key} is none of the nodes of its flow: {short(node['name'])}")
        return self._numbers[id(node)]

    def _edges(self) -> list[dict[str, Edge]]:
        edges: list[dict[str, Edge]] = [{} for _ in self._nodes]
        for value in self._all.get(self._part, "control_flow_connections", list):
            part = self._all.component(value, ("ControlFlowEdge",), "a control edge")
            source = self._number(part, "from_node")
            number = self._number(part, "to_node")
            target = number
            branch = self._all.get(part, "from_branch", str, NEXT_BRANCH)
            if branch in edges[source]:
                raise self._all.error(part, f"a second edge from the branch {short(branch)} of a node")
            if self._nodes[source]["component_type"] == "EndNode":
                raise self._all.error(part, "no edge begins at an EndNode")
            if self._nodes[target]["component_type"] == "StartNode":
                raise self._all.error(part, "no edge leads to a StartNode")
            if self._nodes[target]["component_type"] == "EndNode":
                target = len(self._nodes) + bool(self._all.facts(self._nodes[target]).get("stop"))
            edges[source][branch] = Edge(target, number, part)
        return edges

    def _data(self) -> dict[tuple[int, str], list[tuple[int, str]]]:
        data: dict[tuple[int, str], list[tuple[int, str]]] = {}
        for value in self._all.get(self._part, "data_flow_connections", list, []):
            part = self._all.component(value, ("DataFlowEdge",), "a data edge")
            output = self._all.get(part, "source_output", str)
            target = (
                self._number(part, "destination_node"), self._all.get(part, "destination_input", str),
            )  # fmt: skip
            data.setdefault(target, []).append((self._number(part, "source_node"), output))
        return data
