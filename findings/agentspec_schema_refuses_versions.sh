#!/usr/bin/env bash
# pyagentspec 26.3.1: the JSON schema of all components, `Component.model_json_schema(only_core_components=True)`, which the format's
# documentation publishes, is valid for no file that the library itself writes. Every file has `agentspec_version` at its root, and each
# component's definition there is closed (`additionalProperties: false`) without that field: the field stands beside the `anyOf` of a
# `Versioned...` definition, where it opens nothing. The schema of one type, `Flow.model_json_schema()`, has it inside and is valid.
#
# Output of the last part of this script:
#   a Flow: schema of all components False, without agentspec_version True, schema of Flow True
#   a StartNode: schema of all components False, without agentspec_version True, schema of StartNode True
#
# The script ends with 1 if any of this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check pyagentspec==26.3.1 jsonschema==4.26.0
"$folder/venv/bin/python" - <<'PYTHON'
import json
import sys

from jsonschema import Draft202012Validator
from pyagentspec.component import Component
from pyagentspec.flows.edges import ControlFlowEdge
from pyagentspec.flows.flow import Flow
from pyagentspec.flows.nodes import EndNode, StartNode

start, end = StartNode(name="start"), EndNode(name="end")
edge = ControlFlowEdge(name="edge", from_node=start, to_node=end)
flow = Flow(name="flow", start_node=start, nodes=[start, end], control_flow_connections=[edge])
whole = Draft202012Validator(Component.model_json_schema(only_core_components=True))
as_described = []
for component in (flow, start):
    written = json.loads(component.to_json())
    bare = {key: value for key, value in written.items() if key != "agentspec_version"}
    kind = type(component).__name__
    single = Draft202012Validator(type(component).model_json_schema(only_core_components=True))
    answers = [whole.is_valid(written), whole.is_valid(bare), single.is_valid(written)]
    print(f"a {kind}: schema of all components {answers[0]}, without agentspec_version {answers[1]}, schema of {kind} {answers[2]}")
    as_described.append(answers == [False, True, True])
sys.exit(0 if all(as_described) else 1)
PYTHON
