#!/usr/bin/env bash
# The math team of examples/run_math.sh, written with an agent framework, learns as it does.
#
#   bash examples/frameworks/run.sh langgraph [key=value ...]       or openai, autogen, agents, smolagents, node
#
# The variables are those of examples/run_math.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
FRAMEWORK=${1:?name a framework: openai, langgraph, autogen, agents, smolagents or node}
shift
if [ "$FRAMEWORK" = node ]; then
  (cd examples/frameworks/node && [ -d node_modules ] || npm --prefix examples/frameworks/node install --silent)
  TEAM='agent.team_command=[node,examples/frameworks/node/team.js]'
else
  bash scripts/setup.sh frameworks
  TEAM="agent.team=examples.frameworks.${FRAMEWORK}_team:team"
fi
exec bash examples/run_math.sh agent.orchestra_type=gateway "$TEAM" 'agent.plugins=[examples.frameworks.roles]' "$@"
