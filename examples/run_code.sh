#!/usr/bin/env bash
# A Coder and a Tester learn to write programs and tests, by AT-GRPO: every call samples four replies, the best one is kept.
#
#   bash examples/run_code.sh                   the embedded default: tiny models, generated tasks, CPU; nothing is downloaded
#   MODEL_PATH=Qwen/Qwen3-1.7B DATA=data/apps bash examples/run_code.sh     a real model, on GPUs
#   bash examples/run_code.sh eval              evaluate the last checkpoint of the experiment
#   bash examples/run_code.sh key=value ...     any key of docs/config.md
#
# examples/README.md lists the variables.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source examples/common.sh

begin code "$@"
ARGS+=(
  'agent.agent_ids=[Coder Agent,Tester Agent]'
  algorithm.preset=at_grpo
  actor_rollout_ref.actor.skip_zero_advantages=true
)
if is_tiny; then
  ARGS+=(
    env.max_steps=2
    sandbox.limits.wall_s=5
    actor_rollout_ref.actor.optim.lr=5e-4
    data.train_batch_size=16
    data.max_prompt_length=192
    data.max_response_length=72
    env.rollout.n=1
    env.rollout.val_n=1
    trainer.total_training_steps=60
  )
  # A SandboxFusion server has limits of its own.
  if [[ " $* " != *" sandbox.url="* ]]; then ARGS+=(sandbox.limits.cpu_s=2); fi
else
  real_model
  ARGS+=(
    env.max_steps=3
    data.train_batch_size=32
    data.max_prompt_length=8192
    data.max_response_length=1024
    env.rollout.n=1
  )
fi
launch
