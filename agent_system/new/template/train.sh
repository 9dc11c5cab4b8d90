#!/usr/bin/env bash
# Train my_flow for two steps, with a tiny random model on the CPU:
#
#   bash my_flow/train.sh
#
# MODEL_PATH is a model of yours (a Hugging Face folder or hub id); arguments are keys of docs/config.md and override those below:
#
#   MODEL_PATH=Qwen/Qwen3-1.7B bash my_flow/train.sh trainer.total_training_steps=100 trainer.controller=ray
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
OUT=outputs/my_flow
mkdir -p "$OUT"

# Tasks: training needs a jsonl or parquet file of rows like these, and validation one of others.
for n in 10 20 30 40 50 60 70 80 45 55; do
  echo "{\"prompt\": \"Describe rain in exactly $n characters.\", \"reward_model\": {\"ground_truth\": \"$n\"}}"
done > "$OUT/tasks.jsonl"
head -n 8 "$OUT/tasks.jsonl" > "$OUT/train.jsonl"
tail -n 2 "$OUT/tasks.jsonl" > "$OUT/val.jsonl"

if [ -z "${MODEL_PATH:-}" ]; then
  MODEL_PATH=$OUT/tiny_model
  python -c "from verl.models.tiny import make_tiny_model; make_tiny_model('$MODEL_PATH', open('$OUT/tasks.jsonl'))"
fi

python -m verl.trainer.main_ppo \
  agent.plugins='[my_flow]' agent.orchestra_type=my_flow agent.agent_ids='[Writer,Editor]' env.env_name=my_flow \
  actor_rollout_ref.model.path="$MODEL_PATH" data.train_files="$OUT/train.jsonl" data.val_files="$OUT/val.jsonl" \
  data.train_batch_size=4 data.max_prompt_length=256 data.max_response_length=32 env.rollout.n=4 \
  trainer.experiment_name=my_flow trainer.controller=local trainer.total_training_steps=2 "$@"
