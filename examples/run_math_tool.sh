#!/usr/bin/env bash
# A Reasoner and a Tool-user, which runs programs by the tool `python`, learn mathematics, by GRPO.
#
#   bash examples/run_math_tool.sh                   the embedded default: tiny models, generated problems, CPU; nothing is downloaded
#   MODEL_PATH=Qwen/Qwen3-1.7B DATA=data/gsm8k bash examples/run_math_tool.sh     a real model, on GPUs
#   bash examples/run_math_tool.sh eval              evaluate the last checkpoint of the experiment
#   bash examples/run_math_tool.sh key=value ...     any key of docs/config.md
#
# examples/README.md lists the variables.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source examples/common.sh

begin math_tool "$@"
ARGS+=(
  'agent.agent_ids=[Reasoner Agent,Tool Agent]'
  'algorithm.group_by=[uid,agent_id,turn,call]'
  actor_rollout_ref.actor.skip_zero_advantages=true
  actor_rollout_ref.actor.invalid_action_penalty_coef=0.1
)
if is_tiny; then
  ARGS+=(
    env.max_steps=2
    env.params.decides=tool
    sandbox.limits.wall_s=5
    actor_rollout_ref.actor.optim.lr=5e-4
    data.train_batch_size=16
    data.max_prompt_length=256
    data.max_response_length=64
    env.rollout.n=8
    env.rollout.val_n=1
    trainer.total_training_steps=40
  )
  # A SandboxFusion server has limits of its own.
  if [[ " $* " != *" sandbox.url="* ]]; then ARGS+=(sandbox.limits.cpu_s=2); fi
else
  real_model
  ARGS+=(
    env.max_steps=3
    data.train_batch_size=32
    data.max_prompt_length=4096
    data.max_response_length=1024
    env.rollout.n=8
  )
fi
launch
