#!/usr/bin/env bash
# A Solver and a Verifier learn mathematics together.
#
#   bash examples/run_math.sh                        the embedded default: tiny models, generated problems, CPU; nothing is downloaded
#   MODEL_PATH=Qwen/Qwen3-4B DATA=data/gsm8k bash examples/run_math.sh        a real model, on GPUs
#   bash examples/run_math.sh eval                   evaluate the last checkpoint of the experiment
#   bash examples/run_math.sh key=value ...          any key of docs/config.md
#
# examples/README.md lists the variables.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source examples/common.sh

begin math "$@"
ARGS+=(
  'agent.agent_ids=[Solver Agent,Verifier Agent]'
  algorithm.adv_estimator=grpo
  agent.orchestra.math.max_loop_num=2
)
if is_tiny; then
  ARGS+=(
    actor_rollout_ref.actor.optim.lr=3e-4
    env.params.verdict_reward=1.0
    data.train_batch_size=16
    data.max_prompt_length="$([ "$EMBEDDED_DATA" ] && echo 256 || echo 1024)"
    data.max_response_length=64
    env.rollout.n=8
    env.rollout.val_n=4
    trainer.total_training_steps=60
  )
else
  real_model
  ARGS+=(
    data.train_batch_size=64
    data.max_prompt_length=2048
    data.max_response_length=1024
    env.rollout.n=8
  )
fi
launch
