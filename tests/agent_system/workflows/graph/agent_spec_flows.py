"""Flows of Open Agent Spec as others write them, in a short form."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from agent_system.errors import AgentSystemError
from agent_system.workflows.graph import Team

# Flows of others, in short: nodes by name, edges as "a b" or "a:branch b", data as "a.out b.in".
Node = dict[str, Any]


def flow(
    nodes: dict[str, Node], edges: Sequence[str], data: Sequence[str] = (), **more: Any
) -> dict[str, Any]:
    """A flow in the form of the format."""
    parts = {
        name: {"component_type": kind, "id": name, "name": name, **rest}
        for name, node in nodes.items()
        for kind, rest in [(node["type"], {k: v for k, v in node.items() if k != "type"})]
    }
    control = []
    for number, edge in enumerate(edges):
        source, target = edge.split()[:2]
        node, _, branch = source.partition(":")
        limit = {"metadata": {"verl_mas": {"max": int(edge.split()[2])}}} if edge.count(" ") > 1 else {}
        control.append(
            {
                "component_type": "ControlFlowEdge",
                "name": f"c{number}",
                "from_node": {"$component_ref": node},
                "to_node": {"$component_ref": target},
                "from_branch": branch or None,
                **limit,
            }
        )
    flows = []
    for number, edge in enumerate(data):
        (node, output), (target, name) = (place.split(".") for place in edge.split())
        flows.append(
            {
                "component_type": "DataFlowEdge",
                "name": f"d{number}",
                "source_node": {"$component_ref": node},
                "source_output": output,
                "destination_node": {"$component_ref": target},
                "destination_input": name,
            }
        )
    return {
        "component_type": "Flow",
        "name": "flow",
        "start_node": {"$component_ref": "start"},
        "nodes": [{"$component_ref": name} for name in nodes],
        "control_flow_connections": control,
        "data_flow_connections": flows,
        "$referenced_components": parts,
        "agentspec_version": "26.1.0",
        **more,
    }


def inputs(*titles: str) -> list[dict[str, str]]:
    return [{"title": title, "type": "string"} for title in titles]


def llm(prompt: str, **more: Any) -> Node:
    return {"type": "LlmNode", "prompt_template": prompt, "llm_config": {"$component_ref": "x"}, **more}


START = {"type": "StartNode", "inputs": inputs("task")}
END = {"type": "EndNode", "outputs": inputs("answer")}


def parsed(value: Any, **more: Any) -> Team:
    return Team.parse(json.dumps(value), name="flow.json", is_json=True, **more)


def refused(value: Any, **more: Any) -> str:
    """The message of a file that is refused."""
    with pytest.raises(AgentSystemError) as error:
        parsed(value, **more)
    assert "\n" not in str(error.value)
    return str(error.value)


def branching(mapping: dict[str, str], **more: Any) -> Node:
    return {"type": "BranchingNode", "mapping": mapping, "inputs": inputs("key"), **more}


def subflow(start: str, nodes: dict[str, Node], edges: Sequence[str], data: Sequence[str]) -> dict[str, Any]:
    """A flow inside of a node. The names of its nodes are no others of the file."""
    value = flow(nodes, edges, data, name=f"flow of {start}", start_node={"$component_ref": start})
    del value["agentspec_version"]
    return value


def defaulted(title: str, default: Any) -> list[dict[str, Any]]:
    """An input or output with a default."""
    return [{"title": title, "type": "string", "default": default}]
