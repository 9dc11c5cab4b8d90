"""Keys of verl 0.9 and Dr. MAS that do not exist here, with the equivalent keys or the reason why
there is none.

An entry matches its key and all keys below it; `*` matches any sections, and the first matching
entry counts. An entry with `take` translates some or all values of a command line
(`verl.compat.command`), the others are refused. The table of docs/upstream_map.md is generated from
this file by `python scripts/gen_config_docs.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from verl.compat.fully_async import (
    batches_of_a_step,
    log_probs_of_the_sampler,
    one_at_a_time,
    proximal_log_probs,
    steps_of_transfers,
    tasks_of_the_run,
    unless_null,
    zero_batch,
)
from verl.compat.values import (
    PER_AGENT,
    Take,
    below,
    beside_enable,
    beside_leader,
    beside_ratio,
    beside_switch,
    both,
    both_sides,
    carried,
    carried_per_agent,
    engine_gpus,
    engine_nodes,
    equal_to_here,
    grouped,
    hybrid_engine,
    into_dtype,
    loggers,
    longest_input,
    mapped,
    no_effect,
    nothing,
    of_dr_mas,
    overlong_buffer,
    own_values,
    recorded_ranks,
    recorded_steps,
    resumed,
    reward_function,
    reward_manager,
    scored_by_model,
    shaping_number,
    shared_policy,
    start_checks,
    switched,
    unused_tool,
    warm_up,
    within_a_node,
    within_the_policy,
    without_switch,
)
from verl.trainer.config.spec import as_typed
from verl.trainer.plan.earlier_files import SWITCHES, Switch

ACTOR, REF, ROLLOUT, MODEL = (
    f"actor_rollout_ref.{section}" for section in ("actor", "ref", "rollout", "model")
)


@dataclass(frozen=True)
class VerlKey:
    """One of verl's keys.

    Attributes:
        name: the key, or a section of keys.
        here: the equivalent keys; empty when there is none.
        note: the difference, or why there is no equivalent.
        take: translation of a value; None refuses every value.
        whose: whose key it is, as messages say it.
    """

    name: str
    here: tuple[str, ...]
    note: str
    take: Take | None = None
    whose: str = "verl's key"

    def matches(self, key: str) -> bool:
        """Return whether `key` is this key, or below it."""
        return fnmatchcase(key, self.name) or fnmatchcase(key, f"{self.name}.*")

    def in_words(self) -> str:
        """Return what becomes of a value on a command line, in words."""
        words = " ".join((self.take.__doc__ or "").partition("\n\n")[0].split()) if self.take else "Refused."
        return (words[:1].lower() + words[1:]).rstrip(".")

    def hint(self) -> str:
        """Return what to use instead, for a one-line error."""
        return (
            f"{self.whose}, here {', '.join(self.here)}: {self.note}"
            if self.here
            else f"{self.whose}, no equivalent here: {self.note}"
        )


def find_verl_key(key: str) -> VerlKey | None:
    """Return the first entry that matches `key`, or None."""
    former_names = (entry for entry in TWINS if entry.name not in entry.here)
    return next((entry for entry in (*VERL_KEYS, *former_names) if entry.matches(key)), None)


def _renamed(name: str, *here: str, note: str = "the same", take: Take | None = None) -> VerlKey:
    return VerlKey(name, here, note, take)


def _absent(note: str, *names: str, take: Take | None = None) -> tuple[VerlKey, ...]:
    return tuple(VerlKey(name, (), note, take) for name in names)


_GROUP = "the group of a task belongs to the environment, as in Dr. MAS"
_PER_DEVICE = "rows per device, not over all devices"
_ONE_SEED = "one seed for all random numbers"
_ALL_TOKENS = "the maximum length of the agent's replies"
_REWARDS = "the environment computes the reward (docs/workflows.md)"
_REWARD_MODEL = "kind=sequence_classification with path; verl's team reward is agents=null, combine=replace"
_TOOLS = "an orchestra defines the order of calls and the tools (docs/workflows.md)"
_ENGINE = (
    "devices of the engines' own; with 0 GPUs, the default here, engines share the devices of the trainer"
)
_TEXT = "text only: no images, video or audio"
_BYPASS = "algorithm.rollout_correction.bypass_mode"
FUNCTION = "reward.custom_reward_function"
_FSDP2 = "FSDP2 is the one training engine"
_ENGINES_ALONE = "timeline.jsonl has the calls of engines; vLLM's own profiler is not started"
_REFERENCE_TRACE = "the reference runs in the policy's worker, and is in its trace"
_WHERE_EPISODES = "episodes are written to trajectories/ in the folder of the run"

VERL_KEYS: tuple[VerlKey, ...] = (
    _renamed(f"{ROLLOUT}.n", "env.rollout.n", note=_GROUP, take=carried),
    _renamed(f"{ROLLOUT}.val_kwargs.n", "env.rollout.val_n", note=_GROUP, take=carried),
    _renamed("*.rollout_n", "env.rollout.n", note=_GROUP),
    # Optimizers and trained parameters.
    _renamed(f"{ACTOR}.ppo_micro_batch_size", f"{ACTOR}.ppo_micro_batch_size_per_gpu", note=_PER_DEVICE),
    _renamed(f"{REF}.log_prob_micro_batch_size", f"{REF}.log_prob_micro_batch_size_per_gpu", note=_PER_DEVICE),
    _renamed(f"{ROLLOUT}.log_prob_micro_batch_size", f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", note=_PER_DEVICE),
    _renamed("critic.ppo_micro_batch_size", "critic.ppo_micro_batch_size_per_gpu", note=_PER_DEVICE),
    _renamed("critic.forward_micro_batch_size", "critic.ppo_micro_batch_size_per_gpu", note=_PER_DEVICE),
    _renamed("critic.forward_micro_batch_size_per_gpu", "critic.ppo_micro_batch_size_per_gpu", note="one size for all passes",
             take=no_effect()),
    _renamed("critic.forward_max_token_len_per_gpu", "critic.ppo_max_token_len_per_gpu", note="one budget for all passes",
             take=no_effect()),
    _renamed(f"{ACTOR}.loss_scale_factor", "data.max_response_length", note=_ALL_TOKENS),
    _renamed("critic.loss_scale_factor", "data.max_response_length", note=_ALL_TOKENS),
    _renamed("*.data_loader_seed", "data.seed", note=_ONE_SEED),
    _renamed("critic.optim.clip_grad", "critic.grad_clip", take=carried),
    _renamed("*.optim.clip_grad", f"{ACTOR}.grad_clip", take=carried_per_agent),
    _renamed("critic.optim.warmup_style", "critic.optim.lr_scheduler_type", take=carried),
    _renamed("*.optim.warmup_style", f"{ACTOR}.optim.lr_scheduler_type", take=carried_per_agent),
    *_absent("always AdamW; betas, eps and weight_decay are keys", "*.optim.optimizer", take=nothing("adamw")),
    *_absent("always AdamW; betas, eps and weight_decay are keys", "*.optim.optimizer_impl", take=nothing("torch.optim")),
    *_absent("always AdamW; betas, eps and weight_decay are keys", "*.optim.override_optimizer_config", take=nothing("null", "{}")),
    *_absent("cosine ends after half a cycle", "*.optim.num_cycles"),
    *_absent("the schedule counts from the first optimizer step", "*.optim.zero_indexed_step"),
    _renamed(f"{ACTOR}.policy_loss.tau_pos", f"{ACTOR}.tau_pos", take=carried),
    _renamed(f"{ACTOR}.policy_loss.tau_neg", f"{ACTOR}.tau_neg", take=carried),
    _renamed(f"{ACTOR}.use_remove_padding", f"{MODEL}.use_remove_padding", take=carried),
    _renamed(f"{ACTOR}.calculate_sum_pi_squared", "algorithm.adv_estimator", note="computed when the estimator needs it",
             take=nothing()),
    *_absent("actor/entropy is always written", f"{ACTOR}.calculate_entropy", take=nothing()),
    _renamed("*.checkpoint", "trainer.save_hf_model", note="a checkpoint always has all that a resumed run needs; this adds a model copy"),
    # FSDP.
    _renamed(f"{REF}.fsdp_config", f"{ACTOR}.fsdp_config", note="the reference is sharded like the policy", take=no_effect()),
    _renamed("*.fsdp_config.fsdp_size", "trainer.resource_pool", "trainer.pool_sizes", note="over all devices of the worker group",
             take=no_effect(silent=("-1",))),
    _renamed("critic.fsdp.fsdp_size", "trainer.resource_pool", "trainer.pool_sizes", note="over all devices of the worker group",
             take=no_effect(silent=("-1",))),
    *(
        _renamed(f"{section}.offload_policy", f"{section}.param_offload", f"{section}.optimizer_offload", take=both)
        for section in (f"{ACTOR}.fsdp_config", "critic.fsdp")
    ),
    _renamed("*.fsdp_config.seed", "data.seed", note=_ONE_SEED),
    _renamed("critic.fsdp.seed", "data.seed", note=_ONE_SEED),
    _renamed(f"{ACTOR}.fsdp_config.mixed_precision", f"{ACTOR}.fsdp_config.dtype", note="gradients reduce in fp32",
             take=below(param_dtype=into_dtype, reduce_dtype=no_effect(silent=("fp32",)), buffer_dtype=no_effect(silent=("fp32",)))),
    _renamed("critic.fsdp.mixed_precision", "critic.fsdp.dtype", note="gradients reduce in fp32",
             take=below(param_dtype=into_dtype, reduce_dtype=no_effect(silent=("fp32",)), buffer_dtype=no_effect(silent=("fp32",)))),
    *_absent("FSDP2 wraps layer by layer without this key", "*.wrap_policy", "*.forward_prefetch", "*.use_orig_params", "*.forward_only",
             take=no_effect()),
    *_absent("a device processes whole rows: no sequence parallelism", "*.ulysses_sequence_parallel_size", take=no_effect(silent=("1",))),
    *_absent("nothing is compiled", "*.use_torch_compile", take=no_effect(silent=("false",))),
    _renamed("critic.model.fsdp_config", "critic.fsdp", take=carried),
    _renamed("critic.fsdp_config", "critic.fsdp", note="verl 0.9 uses this name as well", take=carried),
    *_absent(_FSDP2, "*.strategy", take=nothing("fsdp", "fsdp2")),
    *_absent(_FSDP2, "*.megatron", "*.veomni", "*.torchtitan", "*.mindspeed", "*.automodel"),
    *_absent("a smaller ppo_max_token_len_per_gpu needs less memory", "*.entropy_from_logits_with_chunking",
             "*.entropy_from_logits_chunk_size", "*.entropy_checkpointing",
             take=no_effect(silent=("false",))),
    *_absent("a micro-batch is as long as its rows", "*.pad_to_length", "*.pad_to_length_bucket"),
    *_absent("no quantization", "*.qat", "*.quantization", "*.quantization_config_file", take=nothing("null")),
    *_absent("runs on a CPU are bitwise reproducible; GPU kernels are not changed", "*.full_determinism", take=nothing("false")),
    # Models.
    _renamed(f"{MODEL}.override_config.attn_implementation", f"{MODEL}.attn_implementation", take=carried),
    _renamed("critic.model.override_config.attn_implementation", "critic.model.attn_implementation", take=carried),
    *_absent("the model's config.json is used unchanged", "*.model.override_config", "*.model.hf_config_path"),
    _renamed("*.model.custom_chat_template", f"{MODEL}.tokenizer_path", note="a tokenizer folder with that template"),
    _renamed("*.model.external_lib", "agent.plugins", note="modules to import first"),
    _renamed(f"{MODEL}.enable_activation_offload", f"{MODEL}.enable_gradient_checkpointing", note="activations are recomputed, not moved",
             take=no_effect(silent=("false",))),
    _renamed("critic.model.enable_activation_offload", "critic.model.enable_gradient_checkpointing",
             note="activations are recomputed, not moved", take=no_effect(silent=("false",))),
    _renamed(f"{MODEL}.lora.merge", f"{ROLLOUT}.weight_transfer", note="only the adapter is sent; engines apply it to their base model",
             take=no_effect()),
    _renamed(f"{MODEL}.lora", f"{MODEL}.lora_rank", "agent.specialization",
             note="also lora_alpha, target_modules and exclude_modules; no dropout"),
    *_absent("all parameters of critics are trained", "critic.model.lora_rank", "critic.model.lora_alpha", "critic.model.target_modules",
             "critic.model.exclude_modules", "critic.model.lora_adapter_path", "critic.model.lora"),
    *_absent("each process reads models from disk", "*.use_shm", take=no_effect(silent=("false",))),
    _renamed(f"{ACTOR}.use_fused_kernels", f"{MODEL}.use_fused_kernels", take=carried),
    *_absent("a value model's head has one output", "critic.model.use_fused_kernels",
             take=no_effect(silent=("false",))),
    *_absent("transformers' own layers are used", "*.fused_kernel_options", "*.use_liger", "*.tiled_mlp",
             take=no_effect(silent=("false",))),
    *_absent("no multi-token prediction", "*.mtp"),
    *_absent("no metrics or routing of experts", "*.router_replay", f"{ROLLOUT}.enable_rollout_routing_replay",
             f"{ROLLOUT}.moe_load_balance_metrics_interval"),
    *_absent(_TEXT, f"{ACTOR}.freeze_vision_tower"),
    _renamed("actor_rollout_ref.hybrid_engine", "rollout.n_gpus_per_node", note="0: engine and trainer on the same devices",
             take=hybrid_engine),
    _renamed("actor_rollout_ref.nccl_timeout", "trainer.worker_timeout_s", note="limits every call to a worker", take=carried),
    # Sampling.
    _renamed(f"{ROLLOUT}.nnodes", "rollout.nnodes", "rollout.n_gpus_per_node", note=_ENGINE, take=engine_nodes),
    _renamed(f"{ROLLOUT}.n_gpus_per_node", "rollout.n_gpus_per_node", note=_ENGINE, take=engine_gpus),
    _renamed(f"{ROLLOUT}.seed", "data.seed", note=_ONE_SEED),
    _renamed(f"{ROLLOUT}.max_model_len", "data.max_prompt_length", "data.max_response_length", note="the sum of both"),
    _renamed(f"{ROLLOUT}.cudagraph_capture_sizes", f"{ROLLOUT}.enforce_eager", note="vLLM's own sizes, or no graphs",
             take=no_effect()),
    _renamed(f"{ROLLOUT}.layered_summon", f"{ROLLOUT}.update_bucket_mb", note="weights are always sent in buckets", take=no_effect()),
    _renamed(f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes", f"{ROLLOUT}.update_bucket_mb", take=carried),
    _renamed(f"{ROLLOUT}.checkpoint_engine.backend", f"{ROLLOUT}.weight_transfer", note="auto is NCCL for engines with GPUs of their own",
             take=no_effect(silent=("naive",))),
    _renamed(f"{ROLLOUT}.checkpoint_engine", f"{ROLLOUT}.weight_transfer", note="weights are sent from worker to worker, in buckets"),
    _renamed(f"{ROLLOUT}.do_sample", f"{ROLLOUT}.temperature", note="training episodes are always sampled",
             take=nothing("true")),
    _renamed(f"{ROLLOUT}.multi_turn", "agent.orchestra_type", "env.max_steps", note=_TOOLS),
    _renamed(f"{ROLLOUT}.agent", "agent.orchestra_type", "rollout.max_concurrent_episodes", note=_TOOLS),
    _renamed(f"{ROLLOUT}.trace", "trainer.log_trajectories", note=_WHERE_EPISODES),
    _renamed(f"{ROLLOUT}.data_parallel_size", f"{ROLLOUT}.tensor_model_parallel_size",
             note="number of engines of a worker group: its devices / tensor_model_parallel_size"),
    *_absent("an engine spans devices by tensor parallelism only", f"{ROLLOUT}.expert_parallel_size",
             f"{ROLLOUT}.pipeline_model_parallel_size", f"{ROLLOUT}.disaggregation"),
    *_absent("engines are always asynchronous servers", f"{ROLLOUT}.mode", take=no_effect("sync", silent=("async",))),
    *_absent("a reply ends at the model's end token", f"{ROLLOUT}.ignore_eos", take=nothing("false")),
    *_absent("the model is loaded from its folder, then the trainer's weights are sent", f"{ROLLOUT}.load_format",
             take=nothing()),
    *_absent("the sampler's log-probs are always kept", f"{ROLLOUT}.calculate_log_probs", take=nothing()),
    *_absent("the sampler's log-probs are always kept", f"{ROLLOUT}.logprobs_mode", take=nothing("processed_logprobs")),
    *_absent("vLLM chooses its kernels", f"{ROLLOUT}.engine_kwargs.*.attention_backend", f"{ROLLOUT}.engine_kwargs.vllm.compilation_config",
             take=no_effect()),
    *_absent("of waiting requests, those of a validation are served first, others as they come", f"{ROLLOUT}.scheduling_policy",
             take=no_effect("priority", silent=("fcfs",))),
    *_absent(_TEXT, f"{ROLLOUT}.engine_kwargs.vllm.mm_processor_cache_gb", take=nothing()),
    *_absent("vLLM's default is used", f"{ROLLOUT}.engine_kwargs", f"{ROLLOUT}.multi_stage_wake_up"),
    *_absent("engines log no statistics", f"{ROLLOUT}.disable_log_stats", take=no_effect(silent=("true",))),
    *_absent("token ids in, token ids out", f"{ROLLOUT}.skip_tokenizer_init", take=nothing()),
    *_absent("every started episode is awaited", f"{ROLLOUT}.over_sample_rate", take=nothing("0", "0.0")),
    *_absent("metrics go to trainer.logger", f"{ROLLOUT}.prometheus"),
    # Data.
    _renamed("data.tokenizer", f"{MODEL}.tokenizer_path", take=carried),
    _renamed("data.trust_remote_code", f"{MODEL}.trust_remote_code", take=carried),
    _renamed("data.truncation", "data.filter_overlong_prompts",
             note="a task that is too long is dropped or is an error; later prompts lose their oldest context",
             take=no_effect("left", "right", "middle", silent=("error",))),
    _renamed("data.gen_batch_size", "data.train_batch_size",
             note="filter_groups collects by train_batch_size too; fully asynchronous training draws tasks one by one", take=one_at_a_time),
    _renamed("data.tool_config_path", "agent.orchestra_type", note=_TOOLS),
    _renamed("data.function_tool_path", "agent.orchestra_type", note=_TOOLS),
    *_absent("the column data_source names the dataset of a task", "data.reward_fn_key", take=nothing("data_source")),
    *_absent("an agent's prompt is built from the task and written to trajectories/", "data.return_raw_input_ids", "data.return_raw_chat",
             "data.return_full_prompt", take=nothing()),
    *_absent("tasks are read completely, in this process", "data.dataloader_num_workers", "data.filter_overlong_prompts_workers",
             take=nothing()),
    *_absent("validation tasks are in the order of their file", "data.validation_shuffle", take=no_effect(silent=("false",))),
    *_absent(_TEXT, "data.image_patch_size", "data.image_key", "data.video_key", "data.audio_key", "data.return_multi_modal_inputs",
             "data.mm_processor_kwargs"),
    *_absent("convert rows to verl's schema first (examples/data_preprocess)", "data.custom_cls"),
    *_absent("the prompt of every call is built separately", "data.continuous_token"),
    # Rewards.
    *_absent("metrics have the share of penalized replies", "reward.reward_kwargs.overlong_buffer_cfg.log", take=nothing()),
    _renamed("reward.reward_kwargs.overlong_buffer_cfg", "reward.overlong_buffer", note="len and penalty_factor",
             take=overlong_buffer),
    _renamed("reward.reward_kwargs.max_resp_len", "data.max_response_length", note="each agent's own limit applies",
             take=equal_to_here),
    _renamed("reward_model.overlong_buffer", "reward.overlong_buffer", note="len and penalty_factor",
             take=overlong_buffer),
    *(
        _renamed(f"custom_reward_function.{name}", f"{FUNCTION}.path", note="file_or_module:function",
                 take=reward_function)
        for name in ("path", "name")
    ),
    _renamed("custom_reward_function", FUNCTION, note="path:name and reward_kwargs", take=carried),
    *(
        _renamed(f"reward.reward_manager.{name}", "reward.reward_manager.name", note="a name that a plug-in registered (agent.plugins)")
        for name in ("source", "module")
    ),
    _renamed("reward.reward_kwargs", "env.params", note=_REWARDS),
    _renamed("reward.reward_model.enable", "reward.model", note=_REWARD_MODEL, take=scored_by_model),
    _renamed("reward.reward_model.model_path", "reward.model.path", take=carried),
    _renamed("reward.reward_model.rollout", "reward.model.max_length", note="the model is a classifier with an engine of its own",
             take=below(prompt_length=longest_input, response_length=longest_input, name=no_effect(), gpu_memory_utilization=no_effect(),
                        tensor_model_parallel_size=no_effect())),
    _renamed("reward.reward_model", "reward.model", note=_REWARD_MODEL),
    _renamed("reward_model", "reward.model", note=_REWARD_MODEL),
    _renamed("reward.num_workers", "env.env_name", note=_REWARDS, take=no_effect()),
    _renamed("*sandbox_fusion.url", "sandbox.url"),
    _renamed("*sandbox_fusion.max_concurrent", "sandbox.workers"),
    _renamed("*sandbox_fusion.memory_limit_mb", "sandbox.limits.memory_mb"),
    # Dr. MAS.
    _renamed("env.seed", "data.seed", note=_ONE_SEED, take=carried),
    _renamed("env.search.search_url", "env.params.url", take=carried),
    _renamed("env.search.topk", "env.params.topk", take=carried),
    _renamed("env.search.timeout", "env.params.timeout_s", take=carried),
    *_absent("episodes are written to trajectories/", "env.search.log_requests", take=nothing()),
    *_absent("every run has a team", "agent.multi_agent", take=nothing("true")),
    *_absent("the orchestra has the memory", "agent.use_agent_memory", take=nothing("false")),
    # Fully asynchronous training.
    _renamed("async_training.require_batches", "data.train_batch_size",
             note="the tasks of a step, in every mode: require_batches * ppo_mini_batch_size",
             take=batches_of_a_step),
    _renamed("async_training.use_rollout_log_probs", _BYPASS, note="the sampler's log-probs as old ones", take=log_probs_of_the_sampler),
    _renamed(f"{ACTOR}.use_rollout_log_probs", _BYPASS, note="bypass_mode decides, as in verl 0.9", take=no_effect()),
    _renamed("async_training.compute_prox_log_prob", _BYPASS,
             note="false: old log-probs are of the weights before the step; in verl before the first step after a transfer of weights",
             take=proximal_log_probs),
    *_absent("engines validate", "async_training.use_trainer_do_validate", take=no_effect(silent=("false",))),
    *_absent("during a validation episodes in progress go on, none begins, and no weights are sent",
             "async_training.parallel_validate_and_rollout", take=no_effect(silent=("false",))),
    _renamed("async_training.use_dynamic_resource_scheduling", "rollout.n_gpus_per_node",
             note="engines have their devices, or share those of the trainer, for the whole run",
             take=nothing("false")),
    *_absent("only with use_dynamic_resource_scheduling", "async_training.dynamic_schedule_policy",
             "async_training.dynamic_schedule_deactivate_ratio",
             "async_training.dynamic_schedule_enable_rebalance", take=nothing()),
    _renamed("async_training.concurrent_samples_per_replica", "rollout.max_concurrent_episodes", note="of the run, not of an engine",
             take=no_effect()),
    _renamed("*.checkpoint_engine.device_buffer_size_M", f"{ROLLOUT}.update_bucket_mb", take=carried),
    *_absent("weights are always sent in buckets, one after the other", "*.checkpoint_engine.enable", take=no_effect(silent=("true",))),
    *_absent("weights are always sent in buckets, one after the other", "*.checkpoint_engine.overlap_broadcast_and_consume",
             take=no_effect(silent=("false",))),
    _renamed(f"{ROLLOUT}.standalone_gpu_memory_utilization", f"{ROLLOUT}.gpu_memory_utilization", note="of all engines", take=unless_null),
    _renamed("rollout.total_rollout_steps", "trainer.total_training_steps", note="tasks of the run; trainer.total_epochs does not end it",
             take=tasks_of_the_run),
    _renamed("rollout.test_freq", "trainer.test_freq", note="in steps, not in transfers of weights", take=steps_of_transfers),
    *_absent("verl does not read it", "rollout.n", "rollout.total_epochs", take=nothing()),
    # Algorithms and the run.
    *_absent("the collections of a step run one after the other", "algorithm.filter_groups.max_inflight_gen_batches",
             take=no_effect(silent=("1",))),
    *_absent("rows are not resampled by their reward", "algorithm.use_pf_ppo", take=nothing("false")),
    *_absent("rows are not resampled by their reward", "algorithm.pf_ppo"),
    *_absent("no distillation from a teacher", "distillation"),
    _renamed("trainer.max_actor_ckpt_to_keep", "trainer.max_ckpt_to_keep", note="policies and critics are in one checkpoint",
             take=carried),
    _renamed("trainer.max_critic_ckpt_to_keep", "trainer.max_ckpt_to_keep", note="policies and critics are in one checkpoint",
             take=no_effect()),
    _renamed("trainer.remove_previous_ckpt_in_save", "trainer.max_ckpt_to_keep", note="with 1"),
    _renamed("trainer.default_hdfs_dir", "trainer.default_local_dir", note="a mounted folder"),
    _renamed("trainer.log_val_generations", "trainer.log_trajectories", note=_WHERE_EPISODES, take=no_effect(silent=("0",))),
    _renamed("trainer.rollout_data_dir", "trainer.log_trajectories", note=_WHERE_EPISODES),
    _renamed("trainer.validation_data_dir", "trainer.log_trajectories", note=_WHERE_EPISODES),
    _renamed("trainer.ray_wait_register_center_timeout", "trainer.worker_timeout_s", note="limits every call to a worker"),
    _renamed("trainer.esi_redundant_time", "trainer.save_freq", note="SIGTERM checkpoints and stops"),
    *_absent("a checkpoint is kept until there are max_ckpt_to_keep newer ones", "trainer.del_local_ckpt_after_load"),
    *_absent("one trainer: episodes, then the update", "trainer.use_v1", "trainer.v1", take=nothing("false")),
    _renamed("ray_kwargs.ray_init.num_cpus", "ray_init.num_cpus", take=carried),
    *_absent("workers run in the environment of this command", "ray_kwargs.ray_init.runtime_env.py_executable",
             take=no_effect(silent=("null",))),
    _renamed("ray_kwargs.ray_init.runtime_env.env_vars", "ray_init.env_vars", take=carried),
    _renamed("ray_kwargs.ray_init", "ray_init.address", note="also num_cpus and object_store_memory_mb"),
    *_absent("timeline.jsonl in the folder of the run has the timeline", "ray_kwargs.timeline_json_file"),
    *_absent(_FSDP2, "model_engine", take=nothing("dp", "fsdp", "fsdp2")),
    *_absent(_ENGINES_ALONE, f"{ROLLOUT}.profiler.enable", take=no_effect(silent=("false",))),
    *_absent(_ENGINES_ALONE, f"{ROLLOUT}.profiler", take=nothing()),
    _renamed(f"{REF}.profiler.enable", f"{ACTOR}.profiler.ranks", note=_REFERENCE_TRACE, take=within_the_policy),
    *_absent(_REFERENCE_TRACE, f"{REF}.profiler", take=nothing()),
    *_absent("torch is the one profiler", "*.profiler.tool", take=nothing("null", "torch")),
    _renamed("*.profiler.save_path", "global_profiler.save_path", note="one folder for all workers",
             take=no_effect(silent=("null", "outputs/profile"))),
    _renamed("critic.profiler.tool_config.torch.contents", "critic.profiler.contents", take=carried),
    _renamed("*.profiler.tool_config.torch.contents", f"{ACTOR}.profiler.contents", take=carried_per_agent),
    _renamed("*.profiler.tool_config.torch.discrete", "global_profiler.steps", note="the calls of a step are ranges of one trace",
             take=no_effect(silent=("false",))),
    *_absent("whole steps are recorded", "*.profiler.tool_config.torch.schedule", "*.profiler.tool_config.torch.profile_token_start",
             "*.profiler.tool_config.torch.profile_token_end"),
    *_absent("torch is the one profiler, so they say nothing", "*.profiler.tool_config", "global_profiler.global_tool_config",
             take=nothing()),
    *_absent("traces are written to save_path", "*.profiler.relocate_results", "global_profiler.relocate_results", take=nothing()),
    *_absent("no command is run after the last step", "*.profiler.finish_hook_all_ranks", "global_profiler.finish_hook_all_ranks",
             take=nothing("false")),
    *_absent("no command is run after the last step", "*.profiler.finish_hook_cmd", "*.profiler.finish_hook_ranks",
             "global_profiler.finish_hook_cmd", "global_profiler.finish_hook_ranks",
             take=nothing("null", "[]")),
    *_absent("batches are sent through Ray's object store", "transfer_queue"),
    *_absent("episodes are always played, never reused", "skip"),
)  # fmt: skip

# Keys of the same name here, with values that are not.
VERL_VALUES: tuple[VerlKey, ...] = (
    _renamed(f"{ROLLOUT}.name", f"{ROLLOUT}.name", note="vLLM samples from the same distribution", take=mapped(sglang="vllm")),
    _renamed("trainer.device", "trainer.device", note="GPUs or the CPU; NPUs are not supported", take=mapped(npu="auto")),
    _renamed("data.train_batch_size", "data.train_batch_size", note="the tasks of a step: require_batches * ppo_mini_batch_size",
             take=zero_batch),
    _renamed("trainer.logger", "trainer.logger", note="a list; the backend file is jsonl", take=loggers),
    *(
        _renamed(name, name, note="a short name", take=mapped(bfloat16="bf16", float32="fp32"))
        for name in (f"{ACTOR}.fsdp_config.model_dtype", f"{ACTOR}.fsdp_config.dtype", "critic.fsdp.model_dtype", "critic.fsdp.dtype",
                     f"{ROLLOUT}.dtype")
    ),
    *(
        _renamed(name, name, note="each agent's own value", take=own_values)
        for name in (f"{ACTOR}.optim.lr", f"{ACTOR}.ppo_micro_batch_size_per_gpu", f"{ACTOR}.ppo_mini_batch_size")
    ),
)  # fmt: skip


FORMER_KEY = "a key of an earlier version"


def _switch(switch: Switch) -> tuple[VerlKey, ...]:
    """Return the entries of a boolean and of the key that has its meaning here, of all and of agents."""
    on, off = map(as_typed, switch.words)
    take = switched(switch.on, as_typed(switch.off), (on, off))
    pairs = [(switch.name, switch.number, switch.note)]
    if switch.number.startswith("actor_rollout_ref."):
        names = (name.replace("actor_rollout_ref", PER_AGENT, 1) for name in (switch.name, switch.number))
        meaning = "null: the common one" if switch.off is None else switch.note
        none = "null" if switch.off is None else f"{switch.off:g}"
        name, number = names
        pairs.append((name, number, f"one number per agent, such as [{switch.on},{none}]; {meaning}"))
    return tuple(
        entry
        for name, number, note in pairs
        for entry in (
            VerlKey(name, (number,), note, take, VerlKey.whose if switch.is_upstreams else FORMER_KEY),
            _renamed(number, number, note=note, take=beside_switch(number, name, off)),
        )
    )


# Names of verl and Dr. MAS, and of earlier versions, for what another key says here. They do not
# make a command line one of verl's or of Dr. MAS.
TWINS: tuple[VerlKey, ...] = (
    _renamed(
        "agent.model_sharing",
        "agent.specialization",
        note="prompt: one policy for agents with the same model",
        take=shared_policy,
    ),
    *(entry for switch in SWITCHES for entry in _switch(switch)),
    *(
        _renamed(
            f"{section}.clip_ratio",
            f"{section}.clip_ratio_low",
            f"{section}.clip_ratio_high",
            note="both sides",
            take=both_sides,
        )
        for section in (ACTOR, f"{PER_AGENT}.actor")
    ),
    *(
        _renamed(f"{ACTOR}.{name}", f"{ACTOR}.{name}", note="null: clip_ratio", take=nothing("null"))
        for name in ("clip_ratio_low", "clip_ratio_high")
    ),
    _renamed(
        "algorithm.group_by", "algorithm.group_by", note="null: by group_by_agent_id", take=nothing("null")
    ),
    *(
        _renamed(
            f"{PER_AGENT}.actor.{name}", f"{PER_AGENT}.actor.{name}", note="of each agent", take=beside_ratio
        )
        for name in ("clip_ratio_low", "clip_ratio_high")
    ),
    _renamed(
        "algorithm.group_by_agent_id", "algorithm.group_by", note="[uid,agent_id], or [uid]", take=grouped
    ),
    VerlKey("agent.team_command", ("agent.team",), "a command, or module:function", carried, FORMER_KEY),
    *_absent(
        "ranks always get about the same number of tokens", "trainer.balance_batch", take=nothing("true")
    ),
    *(
        _renamed(
            f"{section}.{name}",
            f"{section}.lr_warmup_steps",
            note="below 1: their share of the schedule's",
            take=warm_up,
        )
        for section in (f"{ACTOR}.optim", f"{PER_AGENT}.actor.optim", "critic.optim")
        for name in ("lr_warmup_steps_ratio", "lr_warmup_steps")
    ),
    *(
        _renamed(f"trainer.{name}", "trainer.resume_mode", note="the folder itself", take=resumed)
        for name in ("resume_from_path", "resume_mode")
    ),
    _renamed(
        "global_profiler.tool", "global_profiler.steps", note="torch is the one profiler", take=unused_tool
    ),
    _renamed("global_profiler.steps", "global_profiler.steps", note="null: none", take=recorded_steps),
    _renamed(
        "global_profiler.profile_continuous_steps",
        "global_profiler.steps",
        note="[[2,3]] has both in one trace",
        take=nothing("true", "false"),
    ),
    *(
        VerlKey(
            f"trainer.check_{name}",
            ("trainer.checks",),
            "the list of those that are made",
            start_checks,
            FORMER_KEY,
        )
        for name in ("engines", "memory")
    ),
    *(
        _renamed(
            f"{FUNCTION}.{name}", f"{FUNCTION}.path", note="file_or_module:function", take=reward_function
        )
        for name in ("path", "name")
    ),
    *(
        VerlKey(
            f"reward.shaping_{name}",
            ("reward.shaping_by",),
            f"of {' and '.join(shapings)}",
            shaping_number(former, *shapings),
            FORMER_KEY,
        )
        for name, former, shapings in (
            ("gamma", "0.9", ("discount", "hop_discount")),
            ("threshold", "0.5", ("binary",)),
        )
    ),
    VerlKey(
        "rollout.pool_sizes",
        ("trainer.pool_sizes",),
        "[6,2]: those of the trainer and of the engines",
        None,
        FORMER_KEY,
    ),
    *(
        _renamed(f"{section}.{name}", f"{section}.ranks", note="[0], or all; []: none", take=take)
        for section in (f"{ACTOR}.profiler", "critic.profiler")
        for name, take in (
            ("enable", recorded_ranks),
            ("all_ranks", recorded_ranks),
            ("ranks", beside_enable),
        )
    ),
    *(
        _renamed(
            f"{PER_AGENT}.actor.profiler.{name}",
            f"{PER_AGENT}.actor.profiler.ranks",
            note="one list per agent, or all; []: none",
        )
        for name in ("enable", "all_ranks")
    ),
)
# Values of keys of the same name that mean something else in a command line with keys or values of
# the two tables above.
VERL_MEANINGS: tuple[VerlKey, ...] = (
    _renamed(f"{ROLLOUT}.tensor_model_parallel_size", f"{ROLLOUT}.tensor_model_parallel_size", note="an engine's devices are on one node",
             take=within_a_node),
    *(
        _renamed(name, name, note="in steps; there in transfers of weights, if these are of several steps", take=steps_of_transfers)
        for name in ("trainer.test_freq", "trainer.save_freq")
    ),
    _renamed(f"{MODEL}.lora_rank", f"{MODEL}.lora_rank", note="0: no adapter", take=nothing("0")),
    _renamed("trainer.resume_from_path", "trainer.resume_mode", note="the folder itself", take=no_effect()),
    *_absent("ranks always get about the same number of tokens", "trainer.balance_batch", take=no_effect()),
    _renamed("global_profiler.steps", "global_profiler.steps", note="null: none",
             take=without_switch("global_profiler.tool", "null")),
    *(
        _renamed(f"{section}.ranks", f"{section}.ranks", note="[]: none",
                 take=without_switch(f"{section}.enable"))
        for section in (f"{ACTOR}.profiler", "critic.profiler")
    ),
    # verl 0.9 samples a validation at this temperature whatever do_sample is.
    _renamed(f"{ROLLOUT}.val_kwargs.temperature", f"{ROLLOUT}.val_kwargs.temperature", note="0: greedy",
             take=of_dr_mas(without_switch(f"{ROLLOUT}.val_kwargs.do_sample"))),
    *(
        _renamed(switch.number, switch.number, note=switch.note,
                 take=without_switch(switch.name, as_typed(switch.words[1])))
        for switch in SWITCHES if switch.is_verls
    ),
    *(
        _renamed(name, name, note="null is the default, as there", take=nothing("null"))
        for name in ("data.seed", "data.val_batch_size", "trainer.total_training_steps",
                     f"{ACTOR}.ppo_micro_batch_size_per_gpu")
    ),
    *(
        _renamed(name, name, note="rows of a micro-batch",
                 take=beside_leader(its_switch, f"{ACTOR}.use_dynamic_bsz"))
        for name, its_switch in (
            ("critic.ppo_micro_batch_size_per_gpu", "critic.use_dynamic_bsz"),
            (f"{REF}.log_prob_micro_batch_size_per_gpu", f"{REF}.log_prob_use_dynamic_bsz"),
            (f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", f"{ROLLOUT}.log_prob_use_dynamic_bsz"),
        )
    ),
    _renamed("reward.reward_manager.name", "reward.reward_manager.name",
             note="a function may return terms beside its score; without one, the environment gives the reward", take=reward_manager),
)  # fmt: skip
