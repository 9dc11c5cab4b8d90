#!/usr/bin/env bash
# A Verifier, a Search Agent and an Answer Agent learn to answer questions with a search engine.
#
#   bash examples/run_search.sh                  the embedded default: tiny models, generated facts, CPU; nothing is downloaded
#   MODEL_PATH=Qwen/Qwen3-4B DATA=data/search bash examples/run_search.sh env.params.url=http://127.0.0.1:8000        a real model, on GPUs
#   bash examples/run_search.sh eval             evaluate the last checkpoint of the experiment
#   bash examples/run_search.sh key=value ...    any key of docs/config.md
#
# If DATA holds a corpus.jsonl, the run starts a retrieval server for it on loopback, unless env.params.url names one.
# examples/README.md lists the variables.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source examples/common.sh

begin search "$@"
ARGS+=(
  'agent.agent_ids=[Verifier Agent,Search Agent,Answer Agent]'
  algorithm.adv_estimator=grpo
  env.max_steps=4
  env.history_length=4
)
if [ -f "$DATA/corpus.jsonl" ] && [[ " $* " != *" env.params.url="* ]]; then ARGS+=("env.params.corpus=$DATA/corpus.jsonl"); fi
if is_tiny; then
  ARGS+=(
    env.params.topk=1
    env.params.view=text
    actor_rollout_ref.actor.optim.lr=3e-4
    data.train_batch_size=16
    data.max_prompt_length="$([ "$EMBEDDED_DATA" ] && echo 192 || echo 1024)"
    data.max_response_length=32
    env.rollout.n=8
    env.rollout.val_n=4
    trainer.total_training_steps=60
  )
else
  real_model
  ARGS+=(
    data.train_batch_size=64
    data.max_prompt_length=4096
    data.max_response_length=1024
    env.rollout.n=8
  )
fi
launch
