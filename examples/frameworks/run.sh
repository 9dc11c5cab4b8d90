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
  NODE=examples/frameworks/node
  [ -d $NODE/node_modules ] || npm install --prefix $NODE --loglevel=error --no-package-lock --no-audit --no-fund
  TEAM="agent.team=[node,$NODE/team.js]"
else
  bash scripts/setup.sh frameworks
  TEAM="agent.team=examples.frameworks.${FRAMEWORK}_team:team"
fi
export EXPERIMENT=${EXPERIMENT:-math_${FRAMEWORK}_seed${SEED:-0}}
exec bash examples/run_math.sh agent.orchestra_type=gateway "$TEAM" 'agent.plugins=[examples.frameworks.roles]' "$@"
