#!/usr/bin/env bash
# A search for a team that solves mathematics, from a Solver alone; nothing is trained.
#
#   bash examples/run_evolve.sh                        the embedded default: a tiny model, generated problems, CPU; nothing is downloaded
#   MODEL_PATH=Qwen/Qwen3-4B DATA=data/gsm8k bash examples/run_evolve.sh evolve.budget_tokens=20000000
#   bash examples/run_evolve.sh key=value ...          any key of docs/config.md, those of evolve too
#
# docs/evolve.md explains it; examples/README.md lists the variables.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source examples/common.sh

EVOLVE=()
KEYS=()
for key in "$@"; do
  if [[ $key == evolve.* ]]; then EVOLVE+=("$key"); else KEYS+=("$key"); fi
done
SEED=${SEED:-0}
EXPERIMENT=${EXPERIMENT:-evolve_seed${SEED}}
begin math ${KEYS[@]+"${KEYS[@]}"}
replace_team
ARGS+=('agent.agent_ids=[Solver Agent,Verifier Agent]' agent.specialization=prompt)
if is_tiny; then
  ARGS+=(
    'evolve.start=[examples/evolve/alone_short.yaml]'
    'evolve.parts=[agent_system/workflows/math/team_short.yaml]'
    data.max_prompt_length="$([ "$EMBEDDED_DATA" ] && echo 256 || echo 1024)"
    data.max_response_length=64
  )
else
  ARGS+=(
    'evolve.start=[examples/evolve/alone.yaml]'
    'evolve.parts=[agent_system/workflows/math/team.yaml]'
    data.apply_chat_template_kwargs.enable_thinking=false
    data.max_prompt_length=4096
    data.max_response_length=1024
    rollout.call_timeout_s=1800
    rollout.episode_timeout_s=3600
  )
fi
exec python -m agent_system.evolve "${ARGS[@]}" ${OVERRIDES[@]+"${OVERRIDES[@]}"} ${EVOLVE[@]+"${EVOLVE[@]}"}
