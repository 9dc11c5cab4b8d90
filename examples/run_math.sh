#!/usr/bin/env bash
# A Solver and a Verifier learn mathematics together.
#
#   bash examples/run_math.sh                        the embedded default: tiny models, generated problems, CPU; nothing is downloaded
#   MODEL_PATH=Qwen/Qwen3-4B DATA=data/gsm8k bash examples/run_math.sh        the real job, on GPUs
#   bash examples/run_math.sh eval                   evaluate the last checkpoint of the experiment
#   bash examples/run_math.sh key=value ...          any key of docs/config.md
#
# SEED (0), EXPERIMENT (math_seed<SEED>), MODEL_PATH (empty: embedded), DATA (a folder with train.parquet and test.parquet; empty: embedded),
# EMBEDDED_DIR (outputs/embedded), DEMOS (demonstrations of the embedded warm start; a few hundred make a quick look that learns little).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

SEED=${SEED:-0}
EXPERIMENT=${EXPERIMENT:-math_seed${SEED}}
MODE=()
if [ "${1:-}" = eval ]; then
  MODE=(trainer.val_only=true)
  shift
fi

bash scripts/setup.sh
# shellcheck disable=SC1091
source .venv/bin/activate
export TOKENIZERS_PARALLELISM=false RAY_USAGE_STATS_ENABLED=0

ARGS=(
  trainer.project_name=verl-mas
  trainer.experiment_name="$EXPERIMENT"
  data.seed="$SEED"
  agent.orchestra_type=math
  env.env_name=math
  'agent.agent_ids=[Solver Agent,Verifier Agent]'
  agent.model_sharing=false
  algorithm.adv_estimator=grpo
  algorithm.group_by_agent_id=true
  agent.orchestra.math.max_loop_num=2
)
if [ -z "${MODEL_PATH:-}" ] || [ -z "${DATA:-}" ]; then
  EMBEDDED=$(python -m examples.embedded.prepare --out "${EMBEDDED_DIR:-outputs/embedded}" --seed "$SEED" ${DEMOS:+--demos "$DEMOS"})
fi
if [ -z "${MODEL_PATH:-}" ]; then
  MODEL_PATH=$EMBEDDED/model
  ARGS+=(
    agent.orchestra.math.prompt_style=short
    actor_rollout_ref.actor.optim.lr=3e-4
    env.params.verdict_reward=1.0
    data.train_batch_size=16
    data.max_prompt_length="$([ -z "${DATA:-}" ] && echo 256 || echo 1024)"
    data.max_response_length=64
    env.rollout.n=8
    env.rollout.val_n=4
    trainer.total_training_steps=60
    trainer.total_epochs=100
    trainer.device=cpu
  )
else
  ARGS+=(
    actor_rollout_ref.actor.optim.lr=1e-6
    actor_rollout_ref.model.enable_gradient_checkpointing=true
    actor_rollout_ref.actor.fsdp_config.param_offload=true
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=true
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192
    data.train_batch_size=64
    data.max_prompt_length=2048
    data.max_response_length=1024
    data.apply_chat_template_kwargs.enable_thinking=false
    rollout.call_timeout_s=1800
    rollout.episode_timeout_s=3600
    env.rollout.n=8
    trainer.save_freq=20
    trainer.test_freq=20
  )
fi
DATA=${DATA:-$EMBEDDED}
for split in train test; do
  if [ ! -f "$DATA/$split.parquet" ]; then
    echo "error: no $DATA/$split.parquet; DATA must be a folder made by examples/data_preprocess (see its scripts)" >&2
    exit 1
  fi
done
ARGS+=(
  "actor_rollout_ref.model.path=$MODEL_PATH"
  "data.train_files=$DATA/train.parquet"
  "data.val_files=$DATA/test.parquet"
)
exec python -m verl.trainer.main_ppo "${ARGS[@]}" ${MODE[@]+"${MODE[@]}"} "$@"
