#!/usr/bin/env bash
# pyagentspec 26.3.1 with langgraph 1.2.24: the adapter for LangGraph does not reduce what a MapNode collects. A flow that says
# `reducers: {y: sum}` (or average, max, min) declares the output `collected_y` as a number, and the library checks data edges by that type,
# but the run returns the list of all values, as for `append`, without a warning. A prompt `{{total}}` behind it reads "[1.0, 4.0, 9.0]".
# WayFlow's loader of the same file (wayflowcore 26.3.1) raises for these reducers.
#
# Output of the last part of this script:
#   append: type array, returned [1.0, 4.0, 9.0]
#   sum: type number, returned [1.0, 4.0, 9.0]
#   average: type number, returned [1.0, 4.0, 9.0]
#   max: type number, returned [1.0, 4.0, 9.0]
#   min: type number, returned [1.0, 4.0, 9.0]
#
# The script ends with 1 if any of this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check "pyagentspec[langgraph]==26.3.1" langgraph==1.2.24
"$folder/venv/bin/python" - <<'PYTHON'
import sys

from pyagentspec.adapters.langgraph import AgentSpecLoader
from pyagentspec.flows.edges import ControlFlowEdge, DataFlowEdge
from pyagentspec.flows.flow import Flow
from pyagentspec.flows.nodes import EndNode, MapNode, StartNode, ToolNode
from pyagentspec.flows.nodes.mapnode import ReductionMethod
from pyagentspec.property import ListProperty, NumberProperty, Property
from pyagentspec.tools import ServerTool


def flow(name, nodes, data):
    steps = [ControlFlowEdge(name=f"{a.name} {b.name}", from_node=a, to_node=b) for a, b in zip(nodes, nodes[1:])]
    edges = [
        DataFlowEdge(name=f"{a.name} {b.name}", source_node=a, source_output=out, destination_node=b, destination_input=into)
        for a, out, b, into in data
    ]
    return Flow(name=name, start_node=nodes[0], nodes=nodes, control_flow_connections=steps, data_flow_connections=edges)


x, y = NumberProperty(title="x"), NumberProperty(title="y")
start, end = StartNode(name="start", inputs=[x]), EndNode(name="end", outputs=[y])
square = ToolNode(name="square", tool=ServerTool(name="square", description="x * x", inputs=[x], outputs=[y]))
inner = flow("inner", [start, square, end], [(start, "x", square, "x"), (square, "y", end, "y")])
as_described = []
for method in ReductionMethod:
    numbers = StartNode(name="numbers", inputs=[ListProperty(title="xs", item_type=x)])
    mapped = MapNode(name="mapped", subflow=inner, reducers={"y": method})
    total = Property(json_schema={**mapped.outputs[0].json_schema, "title": "total"})
    last = EndNode(name="last", outputs=[total])
    whole = flow("whole", [numbers, mapped, last], [(numbers, "xs", mapped, "iterated_x"), (mapped, "collected_y", last, "total")])
    graph = AgentSpecLoader(tool_registry={"square": lambda x: x * x}).load_component(whole)
    value = graph.invoke({"inputs": {"xs": [1.0, 2.0, 3.0]}, "messages": []})["outputs"]["total"]
    print(f"{method.value}: type {total.type}, returned {value}")
    as_described.append(value == [1.0, 4.0, 9.0] and total.type == ("array" if method is ReductionMethod.APPEND else "number"))
sys.exit(0 if all(as_described) else 1)
PYTHON
