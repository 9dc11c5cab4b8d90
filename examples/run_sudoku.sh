#!/usr/bin/env bash
# A Tool and an Executor learn to solve 4x4 Sudoku, by AT-GRPO: every call samples four replies, the best one is written.
#
#   bash examples/run_sudoku.sh                   the embedded default: tiny models, generated puzzles, CPU; nothing is downloaded
#   MODEL_PATH=Qwen/Qwen3-1.7B bash examples/run_sudoku.sh                 a real model, on GPUs
#   bash examples/run_sudoku.sh eval              evaluate the last checkpoint of the experiment
#   bash examples/run_sudoku.sh key=value ...     any key of docs/config.md
#
# examples/README.md lists the variables.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source examples/common.sh

begin sudoku "$@"
ARGS+=(
  'agent.agent_ids=[Tool Agent,Executor Agent]'
  algorithm.preset=at_grpo
  actor_rollout_ref.actor.skip_zero_advantages=true
  env.max_steps=5
)
if is_tiny; then
  ARGS+=(
    env.params.view=digits
    env.params.clashes=clear
    env.params.success_reward=0.1
    env.params.wrong_penalty=1.0
    actor_rollout_ref.actor.optim.lr=3e-4
    actor_rollout_ref.actor.optim.lr_scheduler_type=cosine
    actor_rollout_ref.actor.optim.total_training_steps=30
    actor_rollout_ref.actor.optim.min_lr_ratio=0.05
    rollout.tree.epsilon=0.8
    data.train_batch_size=32
    data.max_prompt_length=128
    data.max_response_length=48
    env.rollout.n=1
    env.rollout.val_n=1
    trainer.total_training_steps=30
  )
else
  real_model
  ARGS+=(
    data.train_batch_size=32
    data.max_prompt_length=4096
    data.max_response_length=1024
    env.rollout.n=1
  )
fi
launch
