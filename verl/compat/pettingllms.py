"""Names and YAML keys of PettingLLMs, the code base of AT-GRPO, with the equivalent keys here.

Read from its commit a054fb18. A command line in these names is not translated: its configuration is
a YAML file per workflow. The table of docs/upstream_map.md is generated from this file by
`python scripts/gen_config_docs.py`.
"""

from __future__ import annotations

from verl.compat.keys import VerlKey

_AGENT = "agent_policy_configs.agent_configs.*"
_PPO = "models.*.ppo_trainer_config"
_ROLLOUT = "actor_rollout_ref.rollout"
_MODEL = "actor_rollout_ref.model"
_SAME = "the same"


def _entry(name: str, *here: str, note: str = _SAME) -> VerlKey:
    return VerlKey(name, here, note)


PETTINGLLMS_KEYS: tuple[VerlKey, ...] = (
    # Who is trained: the levels L0 to L3.
    _entry("specialization", "agent.specialization",
           note="L1 prompt, L2 lora, L3 full; any other value, such as model, is full there"),
    _entry("L0 (*_L0_single_agent.yaml)", "agent.orchestra_type", note="single, one agent does all; there one agent in turn_order"),
    _entry("lora_rank", f"{_MODEL}.lora_rank",
           note="above 0 it also turns on one adapter for specialization=prompt there; here only lora has adapters, and equal "
                "agent.adapter_ids share one"),
    _entry("lora_alpha", f"{_MODEL}.lora_alpha"),
    _entry("base_models.*.path", "agent.model_ids", note="one entry per agent; a single one is each agent's, with full as separate copies"),
    _entry(f"{_AGENT}.name", "agent.agent_ids"),
    _entry(f"{_AGENT}.policy_name", "agent.model_ids", "agent.specialization",
           note="agents of one policy have the same model; specialization=prompt makes it one policy"),
    _entry("multi_agent_interaction.agent_untrained", "agent.frozen",
           note="there an agent's samples are left out of the update of its policy; here its model stays as it is"),
    # Episodes.
    _entry("multi_agent_interaction.turn_order", "agent.orchestra_type", note="the orchestra calls the agents in its own order"),
    _entry("multi_agent_interaction.parallel", "agent.orchestra_type", note="the orchestra decides which agents are called at once"),
    _entry("env.name", "env.env_name"),
    _entry("env.dataset", "data.train_files", note="a file of tasks"),
    _entry("env.benchmark", "data.val_files", "env.env_name", note="a file of tasks; for stateful_env the world, such as plan_path"),
    _entry("env.map_size", "data.train_files", note="maps are tasks of the file"),
    _entry("env.max_turns", "env.max_steps", note="a turn calls every agent"),
    _entry("env.multi_modal", note="text only: no images, video or audio"),
    _entry("env.resolve", note="nothing there reads it"),
    _entry("env.batched_init", note="nothing there reads it"),
    # Sampling.
    _entry("rollout_mode", "rollout.sampling",
           note="tree (the default there) is tree with select=greedy; no_tree is parallel, where only the last turn's samples are trained"),
    _entry("training.train_sample_num", "rollout.tree.k", "env.rollout.n", note="candidates of a call; without a tree, episodes of a task"),
    _entry("training.validate_sample_num", "env.rollout.val_n"),
    *(
        _entry(f"{_AGENT}.train_llm_config.{name}", f"{_ROLLOUT}.{name}",
               note=f"one agent's under agent.agent_specific_parameters; not given, it is {default} there")
        for name, default in (("temperature", "1.0"), ("top_p", "0.9"), ("top_k", "20"))
    ),
    *(_entry(f"{_AGENT}.val_llm_config.{name}", f"{_ROLLOUT}.val_kwargs.{name}") for name in ("temperature", "top_p", "top_k")),
    _entry(f"{_AGENT}.*.stop", f"{_ROLLOUT}.stop", f"{_ROLLOUT}.val_kwargs.stop", note="a list"),
    _entry(f"{_AGENT}.*.enable_thinking", "data.apply_chat_template_kwargs", note="for all agents"),
    *(
        _entry(f"{_AGENT}.*.{name}", note=f"the sampled distribution is that of the update; not given, it is {default} there")
        for name, default in (("min_p", "0.0"), ("repetition_penalty", "1.2"))
    ),
    _entry("training.sample_temperature", f"{_ROLLOUT}.temperature", note="one temperature for sampling and log-probs; two keys there"),
    _entry("training.max_prompt_length", "data.max_prompt_length"),
    _entry("training.max_response_length", "data.max_response_length"),
    # Rewards and groups.
    _entry("calculate_reward (of an agent class)", "reward.alpha", "reward.team_scope",
           note="the environment gives team and local rewards: r = alpha * team + local"),
    _entry("env_idx, turn_idx, agent_idx", "algorithm.group_by",
           note="algorithm.preset=at_grpo compares the candidates of one call: one task, turn and agent, as in a tree there"),
    _entry(f"{_PPO}.filter_method", "algorithm.filter_groups.metric",
           note="dapo drops groups of equal rewards if filter_ratio is above 0; mean, std and uid have no equivalent"),
    _entry(f"{_PPO}.filter_ratio", note="no share of groups or samples is dropped"),
    _entry(_PPO, "actor_rollout_ref", "algorithm", "critic", "agent.agent_specific_parameters",
           note="verl's keys, see above; one agent's under agent_specific_parameters"),
    # The run.
    _entry("training.train_batch_size", "data.train_batch_size", note="tasks per step"),
    _entry("training.total_training_steps", "trainer.total_training_steps"),
    _entry("training.val_freq", "trainer.test_freq"),
    _entry("training.save_freq", "trainer.save_freq"),
    _entry("training.if_save", "trainer.save_freq",
           note="there a checkpoint after a better validation; here every save_freq steps and at the end"),
    _entry("training.resample_freq", note="nothing there reads it"),
    _entry("training.model_checkpoints_dir", "trainer.default_local_dir", note="the folder is checkpoints/ there, whatever the value"),
    _entry("training.project_name", "trainer.project_name"),
    _entry("training.experiment_name", "trainer.experiment_name"),
    _entry("training.logger", "trainer.logger"),
    _entry("training.device", "trainer.device"),
    _entry("training.ray_wait_register_center_timeout", "trainer.worker_timeout_s", note="limits every call to a worker"),
    _entry("resource.nnodes", "trainer.nnodes"),
    _entry("resource.n_gpus_per_node", "trainer.n_gpus_per_node", note="each policy has its own with trainer.resource_pool=dedicated"),
    _entry("resource.trust_remote_code", f"{_MODEL}.trust_remote_code"),
)  # fmt: skip
