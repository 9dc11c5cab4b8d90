#!/usr/bin/env bash
# A Tool and an Executor learn to push boxes onto goals, by AT-GRPO: every call samples four replies, the best one is made.
#
#   bash examples/run_sokoban.sh                   the embedded default: tiny models, generated rooms, CPU; nothing is downloaded
#   MODEL_PATH=Qwen/Qwen3-1.7B bash examples/run_sokoban.sh                 a real model, on GPUs
#   bash examples/run_sokoban.sh eval              evaluate the last checkpoint of the experiment
#   bash examples/run_sokoban.sh key=value ...     any key of docs/config.md
#
# examples/README.md lists the variables.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source examples/common.sh

begin sokoban "$@"
ARGS+=(
  'agent.agent_ids=[Tool Agent,Executor Agent]'
  algorithm.preset=at_grpo
  actor_rollout_ref.actor.skip_zero_advantages=true
)
if is_tiny; then
  ARGS+=(
    env.params.view=compact
    env.params.show_last=true
    env.params.max_moves=3
    env.params.progress=distance
    env.params.shortfall_penalty=0.2
    env.params.repeat_penalty=0.1
    env.params.deadlock_ends=true
    env.params.deadlock_penalty=0.3
    env.max_steps=12
    rollout.tree.epsilon=0.8
    actor_rollout_ref.actor.optim.lr=8e-4
    actor_rollout_ref.actor.optim.lr_scheduler_type=cosine
    actor_rollout_ref.actor.optim.total_training_steps=30
    actor_rollout_ref.actor.optim.min_lr_ratio=0.05
    data.train_batch_size=32
    data.max_prompt_length=192
    data.max_response_length=56
    env.rollout.n=1
    env.rollout.val_n=1
    trainer.total_training_steps=30
  )
else
  real_model
  ARGS+=(
    env.max_steps=3
    data.train_batch_size=32
    data.max_prompt_length=4096
    data.max_response_length=1024
    env.rollout.n=1
  )
fi
launch
