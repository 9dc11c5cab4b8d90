"""verl's and Dr. MAS's defaults that differ from those here, for command lines in their names; and
the keys that may be left out there.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from verl.compat.values import DR_MAS, plain, same
from verl.trainer.config.run import RunConfig
from verl.trainer.config.spec import as_typed, followers, keys

ACTOR, REF, ROLLOUT, MODEL = (
    f"actor_rollout_ref.{section}" for section in ("actor", "ref", "rollout", "model")
)
# A command line in the names of verl without any of these keys names no team (`ALONE`).
TEAM = ("agent.agent_ids", "agent.orchestra_type", "env.env_name")
# It trains one agent on the messages of a row, rewarded by its data_source, as verl does.
ALONE = {"agent.orchestra_type": "single", "agent.agent_ids": "[Single Agent]", "env.env_name": "data_source"}
FUNCTION = "reward.custom_reward_function.path"
# Defaults of both that change the result, the memory that is needed, or the number of devices.
VERL_DEFAULTS = {
    "data.train_batch_size": "1024",
    "data.filter_overlong_prompts": "false",
    f"{MODEL}.enable_gradient_checkpointing": "true",
    f"{ACTOR}.ppo_mini_batch_size": "256",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": "8",
    f"{ACTOR}.shuffle": "false",
    f"{ROLLOUT}.val_kwargs.temperature": "0.0",
    "critic.model.enable_gradient_checkpointing": "true",
    "algorithm.adv_estimator": "gae",
    "algorithm.filter_groups.max_num_gen_batches": "0",
    "env.rollout.n": "1",
    "trainer.total_epochs": "30",
    "trainer.n_gpus_per_node": "8",
}
DR_MAS_DEFAULTS = {
    f"{ACTOR}.entropy_coeff": "0.001",
    f"{ACTOR}.invalid_action_penalty_coef": "0.1",
    "algorithm.group_by": "[uid]",
    "algorithm.gigpo.similarity_thresh": "1.0",
    "env.max_steps": "50",
    "env.history_length": "2",
}
# Defaults of keys of older versions, which verl 0.9 replaced.
OLDER_DEFAULTS = {
    "reward_model.enable": "false",
    "reward_model.reward_manager": "naive",
    "reward_model.launch_reward_fn_async": "false",
}
# Keys that have the value of another key unless they are set, there as here. Others that follow one
# here keep their default there.
FOLLOW = (
    f"{REF}.log_prob_max_token_len_per_gpu", f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
    f"{REF}.log_prob_micro_batch_size_per_gpu", f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
    "critic.ppo_micro_batch_size_per_gpu", "critic.ppo_mini_batch_size", "critic.ppo_epochs",
    "critic.shuffle",
    "critic.loss_agg_mode",
)  # fmt: skip
# Keys that are left out where they have no effect: verl reads them under the same conditions, or
# they change speed and memory alone.
MAY_HAVE_NO_EFFECT = (
    f"{ACTOR}.kl_loss_coef", f"{ACTOR}.kl_loss_type", f"{ACTOR}.clip_ratio_",
    f"{ACTOR}.ppo_max_token_len_per_gpu",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu", f"{ACTOR}.fsdp_config.", f"{MODEL}.lora_alpha", f"{REF}.",
    f"{ROLLOUT}.log_prob_",
    f"{ROLLOUT}.val_kwargs.", f"{ROLLOUT}.tensor_model_parallel_size", f"{ROLLOUT}.gpu_memory_utilization",
    f"{ROLLOUT}.enforce_eager",
    f"{ROLLOUT}.max_num_batched_tokens", f"{ROLLOUT}.enable_chunked_prefill", f"{ROLLOUT}.free_cache_engine",
    "critic.",
    "algorithm.gamma", "algorithm.lam", "algorithm.kl_ctrl.", "algorithm.kl_penalty", "algorithm.gigpo.",
    "algorithm.group_by",
    "algorithm.rollout_correction.", "algorithm.filter_groups.max_num_gen_batches", "trainer.critic_warmup",
    "trainer.total_epochs",
    f"{ACTOR}.profiler.", "global_profiler.",
)  # fmt: skip


@cache
def verl_0_9_defaults() -> dict[str, str | None]:
    """Return every key of verl 0.9's `ppo_trainer` with its default as typed; None for one that
    follows another key, or is required.
    """
    lines = Path(__file__).with_name("verl_0_9_defaults.txt").read_text(encoding="utf-8").splitlines()[1:]
    words = [
        (section, word.partition("="))
        for section, _, names in (line.partition(": ") for line in lines)
        for word in names.split()
    ]
    return {f"{section}.{name}": value if equals else None for section, (name, equals, value) in words}


def is_verls_default(key: str, value: str) -> bool:
    """Return whether a value as typed is verl's default, which says what is so anyway."""
    return any(
        default is not None and same(value, default)
        for default in (verl_0_9_defaults().get(key), OLDER_DEFAULTS.get(key))
    )


def upstream_defaults(settings: Mapping[str, str], translated: Mapping[str, str]) -> dict[str, str]:
    """Return the keys, key -> value, that a command line in verl's or Dr. MAS's names leaves at
    their defaults, which differ here.

    Args:
        settings: the command line as typed, key -> value.
        translated: its settings here, key -> value.
    """
    defaults = dict(VERL_DEFAULTS)
    if any(key.startswith(DR_MAS) for key in settings):
        defaults |= DR_MAS_DEFAULTS
    if plain(translated.get(f"{ACTOR}.ppo_mini_update_num", "null")) != "null":
        del defaults[f"{ACTOR}.ppo_mini_batch_size"]
    rank, path = (
        plain(translated.get(f"{MODEL}.{name}", "null")) for name in ("lora_rank", "lora_adapter_path")
    )
    if (rank, path) != ("null", "null") and "agent.specialization" not in translated:
        defaults["agent.specialization"] = "lora"
        if path == "null":
            defaults[f"{MODEL}.lora_alpha"] = "16"
    if not any(key in translated for key in TEAM):
        defaults |= ALONE
        if any(plain(translated.get(key, "null")) != "null" for key in (FUNCTION, "reward.model.kind")):
            defaults["env.params.graded"] = "false"
    own_defaults = {
        key: as_typed(keys(RunConfig)[key].default)
        for key, leader in followers(RunConfig).items()
        if leader in translated and key not in FOLLOW and key not in defaults
    }
    leaders = followers(RunConfig)
    defaults |= {
        key: value for key, value in own_defaults.items() if not same(value, translated[leaders[key]])
    }
    return {key: value for key, value in defaults.items() if key not in translated}
