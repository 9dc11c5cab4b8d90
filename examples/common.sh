# shellcheck shell=bash
# Functions of the example scripts, which source this file.
#
#   begin WORKFLOW [eval] [key=value ...]   set up the environment; set ARGS to the keys of every workflow, MODE and OVERRIDES to the arguments
#   is_tiny                                 return whether the embedded tiny model is trained
#   real_model                              add the settings of a real model on GPUs
#   launch                                  start the trainer
set -euo pipefail

begin() {
  WORKFLOW=$1
  shift
  SEED=${SEED:-0}
  EXPERIMENT=${EXPERIMENT:-${WORKFLOW}_seed${SEED}}
  MODE=()
  if [ "${1:-}" = eval ]; then
    MODE=(trainer.val_only=true)
    shift
  fi
  OVERRIDES=("$@")
  # Samples of older weights need a correction.
  case " $* " in *" async_training.mode=one_step_off "* | *" async_training.mode=fully_async "*)
    [[ " $* " == *" algorithm.rollout_correction."* ]] || OVERRIDES+=(algorithm.rollout_correction.rollout_is=token) ;;
  esac
  ORCHESTRA=$WORKFLOW
  local other
  for other in single gateway; do
    if [[ " ${OVERRIDES[*]-} " == *" agent.orchestra_type=$other "* ]]; then ORCHESTRA=$other; fi
  done
  check_given

  bash scripts/setup.sh
  # shellcheck disable=SC1091
  source .venv/bin/activate
  export TOKENIZERS_PARALLELISM=false RAY_USAGE_STATS_ENABLED=0

  TINY=
  EMBEDDED=
  EMBEDDED_DATA=
  if [ -z "$MODEL_PATH" ]; then TINY=1; fi
  if [ -z "$DATA" ]; then EMBEDDED_DATA=1; fi
  if [ "$TINY$EMBEDDED_DATA" ]; then embedded; fi
  if [ "$TINY" ]; then MODEL_PATH=$EMBEDDED/model; fi
  DATA=${DATA:-$EMBEDDED}
  if [[ $WORKFLOW == math* && ! -f $DATA/train.parquet && -f $DATA/train.jsonl && -f $DATA/test.jsonl ]]; then
    # GSM8K as published: questions with solutions.
    python examples/data_preprocess/gsm8k.py --input "$DATA/train.jsonl" "$DATA/test.jsonl" --output "outputs/data/$(basename "$DATA")"
    DATA=outputs/data/$(basename "$DATA")
  fi
  ARGS=(
    trainer.project_name=verl-mas
    trainer.experiment_name="$EXPERIMENT"
    data.seed="$SEED"
    "actor_rollout_ref.model.path=$MODEL_PATH"
    "data.train_files=$DATA/train.parquet"
    "data.val_files=$DATA/test.parquet"
    agent.orchestra_type="$ORCHESTRA"
    env.env_name="$WORKFLOW"
  )
  if [ "$TINY" ]; then
    ARGS+=(agent.orchestra."$ORCHESTRA".prompt_style=short trainer.device=cpu)
  fi
}

# Checks MODEL_PATH and DATA before anything is set up.
check_given() {
  local split
  # Hydra does not expand a quoted ~.
  MODEL_PATH=${MODEL_PATH:-}
  MODEL_PATH=${MODEL_PATH/#\~/$HOME}
  DATA=${DATA:-}
  DATA=${DATA/#\~/$HOME}
  if [[ "$MODEL_PATH" == [./]* && ! -f $MODEL_PATH/config.json ]] &&
    [[ ! ($MODEL_PATH == *.gguf && -f $MODEL_PATH) ]] && ! compgen -G "$MODEL_PATH/*.gguf" >/dev/null; then
    echo "error: MODEL_PATH=$MODEL_PATH is not a Hugging Face model folder (it has no config.json) and no GGUF file; name one, or a hub id such as Qwen/Qwen3-4B" >&2
    exit 1
  fi
  if [[ -z "$DATA" || ($WORKFLOW == math* && -f $DATA/train.jsonl && -f $DATA/test.jsonl) ]]; then return; fi
  for split in train test; do
    if [ ! -f "$DATA/$split.parquet" ]; then
      echo "error: no $DATA/$split.parquet; DATA must be a folder with train.parquet and test.parquet (see examples/README.md)" >&2
      exit 1
    fi
  done
}

# Sets EMBEDDED. The first time takes minutes, so the keys are checked before.
embedded() {
  local prepare=(python -m examples.embedded.prepare --world "$WORKFLOW" --out "${EMBEDDED_DIR:-outputs/embedded}" --seed "$SEED" ${DEMOS:+--demos "$DEMOS"} ${COURSE:+--course "$COURSE"})
  if [ ! "$TINY" ]; then prepare+=(--data-only); fi
  EMBEDDED=$("${prepare[@]}" --find)
  if [ "$EMBEDDED" ]; then return; fi
  if [ "${MODE[*]-}" ]; then
    echo "error: eval finds no embedded model or data of SEED=$SEED DEMOS=${DEMOS:-default} COURSE=${COURSE:-default}; repeat the variables of the training, or train first" >&2
    exit 1
  fi
  if ((${#OVERRIDES[@]})); then python -m verl.trainer.plan.check_keys "${OVERRIDES[@]}"; fi
  EMBEDDED=$("${prepare[@]}")
}

is_tiny() { [ "$TINY" ]; }

real_model() {
  ARGS+=(
    actor_rollout_ref.actor.optim.lr=1e-6
    actor_rollout_ref.model.enable_gradient_checkpointing=true
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192
    data.apply_chat_template_kwargs.enable_thinking=false
    rollout.call_timeout_s=1800
    rollout.episode_timeout_s=3600
    trainer.save_freq=20
    trainer.test_freq=20
  )
  # On a CPU these keys have no effect and would be rejected.
  if [[ " ${OVERRIDES[*]-} " != *" trainer.device=cpu "* ]]; then
    ARGS+=(
      actor_rollout_ref.actor.fsdp_config.param_offload=true
      actor_rollout_ref.actor.fsdp_config.optimizer_offload=true
    )
  fi
}

launch() {
  if [ "$ORCHESTRA" != "$WORKFLOW" ]; then replace_team; fi
  exec python -m verl.trainer.main_ppo "${ARGS[@]}" ${MODE[@]+"${MODE[@]}"} ${OVERRIDES[@]+"${OVERRIDES[@]}"}
}

# Leaves out what only the workflow's own team reads; a single agent has another name.
replace_team() {
  local key kept=()
  for key in "${ARGS[@]}"; do
    if [[ $key == agent.orchestra."$WORKFLOW".* || ($ORCHESTRA == single && $key == agent.agent_ids=*) ]]; then continue; fi
    if [[ $ORCHESTRA == gateway && $key == agent.orchestra.* ]]; then continue; fi
    kept+=("$key")
  done
  ARGS=("${kept[@]}")
  if [ "$ORCHESTRA" = single ]; then ARGS+=('agent.agent_ids=[Single Agent]'); fi
}
