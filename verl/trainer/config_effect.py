"""Keys that were changed and would do nothing: each needs another key, and saying so beats a run that ignores it.

A key counts as changed when its value is not the default. Names that a user registered (an estimator, a loss) may read any key, so
keys of an algorithm are not judged in a run that uses one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from verl.trainer.config import ActorRolloutRefConfig, CriticConfig, OptimConfig, RunConfig
from verl.trainer.config.spec import describe
from verl.trainer.config_check import ConfigError
from verl.trainer.placement import Placement
from verl.trainer.ppo.critic import need_critic
from verl.trainer.ppo.passes import scores_policies
from verl.trainer.ppo.per_agent import agent_config
from verl.trainer.ppo.registry import ESTIMATORS, POLICY_LOSSES, Registry
from verl.utils.names import value_at


class IneffectiveKeyError(ConfigError):
    """A changed key that nothing reads under the other keys of the run; the message names both."""


@dataclass(frozen=True)
class Need:
    """`keys` have an effect only where `holds`; `text` says what to set."""

    keys: tuple[str, ...]
    text: str
    holds: Callable[[Any], bool]


def _all(section: str, names: str) -> tuple[str, ...]:
    return tuple(f"{section}.{name}" for name in names.split())


def estimators_in_use(config: RunConfig) -> set[str]:
    """The estimator of the team and those that single agents have of their own."""
    own = (v for v in config.algorithm.per_agent.values() if isinstance(v, Mapping))
    return {config.algorithm.adv_estimator, *(str(keys["adv_estimator"]) for keys in own if "adv_estimator" in keys)}


def _needs_by_traits(registry: Registry[Any], config: type, section: str, choice: str, used: Callable[[Any], Iterable[str]]) -> list[Need]:
    """The need of each key that only some functions read, as their traits say.

    Args:
        registry: of the functions.
        config: the class that has the keys.
        section: where in it the keys are that traits name.
        choice: what to set: `{}` stands for one name, or for several.
        used: the names in use.
    """

    def need(key: str, readers: list[str]) -> Need:
        text = choice.format(f"={readers[0]}" if len(readers) == 1 else f" of {', '.join(readers)}")
        return Need((f"{section}.{key}",), text, lambda c: any(registry.reads(name, key) for name in used(c)))

    every = [key.removeprefix(f"{section}.") for key, *_ in describe(config) if key.startswith(f"{section}.")]
    return [need(key, readers) for key in every if (readers := registry.readers(key))]


def _averages_by_mode(config: ActorRolloutRefConfig) -> bool:
    """`actor.loss_agg_mode` is read, by the loss or by a term beside it, or says what happens anyway."""
    actor = config.actor
    beside = bool(actor.entropy_coeff) or actor.use_kl_loss
    return beside or POLICY_LOSSES.traits(actor.policy_loss.loss_mode).averages in ("", actor.loss_agg_mode)


def _counts_steps(optim: OptimConfig) -> bool:
    """The schedule depends on how many steps there will be: it falls, or warms up over a share of them."""
    return optim.lr_scheduler_type != "constant" or (optim.lr_warmup_steps < 0 and optim.lr_warmup_steps_ratio > 0)


# Estimators without groups, and losses that average in their own way.
UNGROUPED = [name for name in ESTIMATORS.names() if not ESTIMATORS.traits(name).grouped]
OWN_AVERAGE = [name for name in POLICY_LOSSES.names() if POLICY_LOSSES.traits(name).averages]
FALLING = "{}.lr_scheduler_type=linear or cosine"
COUNTED = FALLING + ", or an lr_warmup_steps_ratio"
ON_A_GPU = "a GPU: trainer.device=auto or cuda"
OFFLOADS = "param_offload optimizer_offload"
PASS_KEYS = "log_prob_use_dynamic_bsz log_prob_max_token_len_per_gpu log_prob_micro_batch_size_per_gpu"
RUN_NEEDS: Sequence[Need] = (
    Need(
        ("algorithm.kl_penalty", *_all("algorithm.kl_ctrl", "type kl_coef horizon target_kl")),
        "algorithm.use_kl_in_reward=true (the KL of the loss is actor_rollout_ref.actor.use_kl_loss)",
        lambda c: c.algorithm.use_kl_in_reward,
    ),
    Need(
        _all("algorithm.kl_ctrl", "horizon target_kl"),
        "algorithm.kl_ctrl.type=adaptive",
        lambda c: c.algorithm.kl_ctrl.type == "adaptive",
    ),
    Need(("algorithm.group_by_agent_id",), "algorithm.group_by=null", lambda c: c.algorithm.group_by is None),
    Need(
        _all("algorithm", "group_by group_by_agent_id singleton"),
        f"an estimator that compares groups (not {', '.join(UNGROUPED)})",
        lambda c: any(ESTIMATORS.traits(name).grouped for name in estimators_in_use(c)),
    ),
    *_needs_by_traits(ESTIMATORS, RunConfig, "algorithm", "algorithm.adv_estimator{}", estimators_in_use),
    Need(("algorithm.gigpo.similarity_thresh",), "algorithm.gigpo.enable_similarity=true", lambda c: c.algorithm.gigpo.enable_similarity),
    Need(
        _all("algorithm.filter_groups", "metric max_num_gen_batches"),
        "algorithm.filter_groups.enable=true",
        lambda c: c.algorithm.filter_groups.enable,
    ),
    Need(
        _all("algorithm.rollout_correction", "rollout_is_threshold rollout_is_batch_normalize"),
        "algorithm.rollout_correction.rollout_is=token or sequence",
        lambda c: c.algorithm.rollout_correction.rollout_is is not None,
    ),
    Need(
        ("algorithm.rollout_correction.rollout_is",),
        "algorithm.rollout_correction.loss_type=reinforce beside bypass_mode=true (the clip of ppo_clip takes the place of the weights)",
        lambda c: not c.algorithm.rollout_correction.bypass_mode or c.algorithm.rollout_correction.loss_type == "reinforce",
    ),
    Need(
        ("algorithm.rollout_correction.rollout_rs_threshold",),
        "algorithm.rollout_correction.rollout_rs",
        lambda c: c.algorithm.rollout_correction.rollout_rs is not None,
    ),
    Need(
        ("algorithm.rollout_correction.loss_type",),
        "algorithm.rollout_correction.bypass_mode=true",
        lambda c: c.algorithm.rollout_correction.bypass_mode,
    ),
    Need(
        _all("actor_rollout_ref.actor", "policy_loss.loss_mode clip_ratio clip_ratio_low clip_ratio_high clip_ratio_c"),
        "algorithm.rollout_correction.loss_type=ppo_clip (reinforce is a loss of its own, without a clip)",
        lambda c: not c.algorithm.rollout_correction.bypass_mode or c.algorithm.rollout_correction.loss_type != "reinforce",
    ),
    Need(_all("rollout.tree", "k k_per_agent select temperature epsilon"), "rollout.sampling=tree", lambda c: c.rollout.sampling == "tree"),
    Need(("rollout.tree.temperature",), "rollout.tree.select=softmax", lambda c: c.rollout.tree.select == "softmax"),
    Need(("rollout.tree.epsilon",), "rollout.tree.select other than random", lambda c: c.rollout.tree.select != "random"),
    Need(_all("sandbox", "level min_level packages"), "sandbox.backend=local", lambda c: c.sandbox.backend == "local"),
    Need(_all("sandbox", "url request_timeout_s"), "sandbox.backend=http", lambda c: c.sandbox.backend == "http"),
    Need(
        _all("sandbox.limits", "processes file_mb disk_mb cpu_s"),
        "sandbox.backend=local (a SandboxFusion server has limits of its own)",
        lambda c: c.sandbox.backend == "local",
    ),
    Need(
        _all("reward.overlong_buffer", "len penalty_factor"),
        "reward.overlong_buffer.enable=true",
        lambda c: c.reward.overlong_buffer.enable,
    ),
    Need(
        ("reward.shaping_gamma",),
        "reward.shaping=discount or hop_discount",
        lambda c: c.reward.shaping in ("discount", "hop_discount"),
    ),
    Need(("reward.shaping_threshold",), "reward.shaping=binary", lambda c: c.reward.shaping == "binary"),
    Need(
        _all("reward.propagation", "theta theta_step"),
        "reward.propagation.theta_quantile=null",
        lambda c: c.reward.propagation.theta_quantile is None,
    ),
    Need(
        _all("reward.propagation", "theta_fall theta_window"),
        "reward.propagation.theta_step",
        lambda c: c.reward.propagation.theta_step > 0,
    ),
    Need(
        ("reward.propagation.theta_step",),
        "data.val_files and trainer.test_freq, for validations between steps",
        lambda c: bool(c.data.val_files) and c.trainer.test_freq > 0,
    ),
    Need(("reward.propagation.gamma",), "reward.propagation.mode=discounted", lambda c: c.reward.propagation.mode == "discounted"),
    Need(
        _all("reward.propagation", "theta theta_quantile theta_step theta_fall theta_window min_pass_rate"),
        "reward.propagation.mode=threshold",
        lambda c: c.reward.propagation.mode == "threshold",
    ),
    Need(("reward.propagation.local_range",), "a reward.propagation.mode", lambda c: c.reward.propagation.mode != "none"),
    Need(
        (*(f"critic.{name}" for name, *_ in describe(CriticConfig) if name != "enable"), "trainer.critic_warmup"),
        "an estimator that reads values (gae), or critic.enable=true",
        need_critic,
    ),
    Need(("critic.joint_prompt_length",), "critic.view=joint", lambda c: c.critic.view == "joint"),
    Need(("critic.ppo_max_token_len_per_gpu",), "critic.use_dynamic_bsz=true", lambda c: c.critic.use_dynamic_bsz),
    Need(("critic.ppo_micro_batch_size_per_gpu",), "critic.use_dynamic_bsz=false", lambda c: not c.critic.use_dynamic_bsz),
    Need(("critic.optim.min_lr_ratio",), FALLING.format("critic.optim"), lambda c: c.critic.optim.lr_scheduler_type != "constant"),
    Need(("critic.optim.total_training_steps",), COUNTED.format("critic.optim"), lambda c: _counts_steps(c.critic.optim)),
    Need(("critic.optim.lr_warmup_steps_ratio",), "critic.optim.lr_warmup_steps=-1", lambda c: c.critic.optim.lr_warmup_steps < 0),
    Need(_all("critic.fsdp", OFFLOADS), ON_A_GPU, lambda c: c.trainer.device != "cpu"),
    Need(_all("ray_init", "address num_cpus object_store_memory_mb"), "trainer.controller=ray", lambda c: c.trainer.controller == "ray"),
)
SAMPLING_NEEDS: Sequence[Need] = (
    Need(
        _all("rollout.val_kwargs", "temperature top_p top_k"),
        "actor_rollout_ref.rollout.val_kwargs.do_sample=true",
        lambda c: c.rollout.val_kwargs.do_sample,
    ),
)
ENGINE_NEEDS: Sequence[Need] = (
    Need(
        _all("rollout", "tensor_model_parallel_size gpu_memory_utilization enforce_eager max_num_batched_tokens enable_chunked_prefill"),
        "actor_rollout_ref.rollout.name=vllm",
        lambda c: c.rollout.name == "vllm",
    ),
)
MODEL_NEEDS: Sequence[Need] = (
    Need(_all("actor", "kl_loss_coef kl_loss_type"), "actor_rollout_ref.actor.use_kl_loss=true", lambda c: c.actor.use_kl_loss),
    Need(
        ("actor.clip_ratio",),
        "one of actor_rollout_ref.actor.clip_ratio_low and clip_ratio_high left out",
        lambda c: c.actor.clip_ratio_low is None or c.actor.clip_ratio_high is None,
    ),
    Need(
        ("actor.invalid_action_penalty_coef",),
        "actor_rollout_ref.actor.use_invalid_action_penalty=true",
        lambda c: c.actor.use_invalid_action_penalty,
    ),
    Need(("actor.ppo_max_token_len_per_gpu",), "actor_rollout_ref.actor.use_dynamic_bsz=true", lambda c: c.actor.use_dynamic_bsz),
    Need(("actor.ppo_micro_batch_size_per_gpu",), "actor_rollout_ref.actor.use_dynamic_bsz=false", lambda c: not c.actor.use_dynamic_bsz),
    Need(
        ("ref.log_prob_micro_batch_size_per_gpu",),
        "actor_rollout_ref.ref.log_prob_use_dynamic_bsz=false",
        lambda c: not c.ref.log_prob_use_dynamic_bsz,
    ),
    Need(
        ("rollout.log_prob_micro_batch_size_per_gpu",),
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=false",
        lambda c: not c.rollout.log_prob_use_dynamic_bsz,
    ),
    Need(
        ("ref.log_prob_max_token_len_per_gpu",),
        "actor_rollout_ref.ref.log_prob_use_dynamic_bsz=true",
        lambda c: c.ref.log_prob_use_dynamic_bsz,
    ),
    Need(
        ("rollout.log_prob_max_token_len_per_gpu",),
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=true",
        lambda c: c.rollout.log_prob_use_dynamic_bsz,
    ),
    *_needs_by_traits(
        POLICY_LOSSES,
        ActorRolloutRefConfig,
        "actor",
        "actor_rollout_ref.actor.policy_loss.loss_mode{}",
        lambda c: [c.actor.policy_loss.loss_mode],
    ),
    Need(
        ("actor.loss_agg_mode",),
        f"a loss that averages by it ({', '.join(OWN_AVERAGE)} do in their own way), an entropy_coeff or use_kl_loss=true",
        _averages_by_mode,
    ),
    Need(
        ("actor.optim.min_lr_ratio",),
        FALLING.format("actor_rollout_ref.actor.optim"),
        lambda c: c.actor.optim.lr_scheduler_type != "constant",
    ),
    Need(
        ("actor.optim.total_training_steps",),
        COUNTED.format("actor_rollout_ref.actor.optim"),
        lambda c: _counts_steps(c.actor.optim),
    ),
    Need(
        ("actor.optim.lr_warmup_steps_ratio",),
        "actor_rollout_ref.actor.optim.lr_warmup_steps=-1",
        lambda c: c.actor.optim.lr_warmup_steps < 0,
    ),
    *ENGINE_NEEDS,
    *SAMPLING_NEEDS,
)


def pass_needs(config: RunConfig, placement: Placement) -> Sequence[Need]:
    """Needs of an agent's keys on passes that score its rows, which this run may make or not."""
    in_reward, scored = config.algorithm.use_kl_in_reward, scores_policies(config, placement)
    return (
        Need(
            _all("ref", PASS_KEYS),
            "a reference: actor_rollout_ref.actor.use_kl_loss=true or algorithm.use_kl_in_reward=true",
            lambda c: in_reward or c.actor.use_kl_loss,
        ),
        Need(
            _all("rollout", PASS_KEYS),
            "a pass for old log-probs: several updates a step, algorithm.use_kl_in_reward=true, a correction, trainer.critic_warmup or an "
            "estimator that reads them (and algorithm.rollout_correction.bypass_mode=false)",
            lambda c: scored,
        ),
    )


def gpu_needs(config: RunConfig, trained: bool) -> Sequence[Need]:
    """Needs of an agent's keys on a GPU; those of its trainer, too, when it has one. `auto` may find one wherever the run starts."""
    may_have_one = config.trainer.device != "cpu"
    keys = (*_all("rollout", "gpu_memory_utilization enforce_eager"), *(_all("actor.fsdp_config", OFFLOADS) if trained else ()))
    return (Need(keys, ON_A_GPU, lambda c: may_have_one),)


def check_effect(config: RunConfig, placement: Placement) -> None:
    """Find changed keys without an effect, for the run and for each agent.

    Raises IneffectiveKeyError naming the key, its value and what it needs.
    """
    for key, need in _without_effect(config, RunConfig(), RUN_NEEDS):
        raise IneffectiveKeyError(f"{key}={value_at(config, key)} has no effect; it needs {need.text}")
    for name in config.algorithm.per_agent:
        mine = replace(config, algorithm=agent_config(config.algorithm, name))
        for key, need in _without_effect(mine, config, RUN_NEEDS):
            own = key.replace("algorithm.", f"algorithm.per_agent.{name}.", 1)
            raise IneffectiveKeyError(f"{own}={value_at(mine, key)} has no effect; it needs, for this agent, {need.text}")
    served = (*ENGINE_NEEDS, *gpu_needs(config, trained=False), *SAMPLING_NEEDS)
    learns = (*MODEL_NEEDS, *gpu_needs(config, trained=True), *pass_needs(config, placement))
    rows = [(row, served if row.frozen else learns) for row in placement.agents] + [(row, SAMPLING_NEEDS) for row in placement.api]
    for agent, needs in rows:
        for key, need in _without_effect(agent.config, ActorRolloutRefConfig(), needs):
            raise IneffectiveKeyError(
                f"actor_rollout_ref.{key}={value_at(agent.config, key)} has no effect for agent '{agent.agent_id}'; it needs {need.text}"
            )


def _without_effect(config: Any, defaults: Any, needs: Sequence[Need]) -> Iterator[tuple[str, Need]]:
    for need in needs:
        if not need.holds(config):
            yield from ((key, need) for key in need.keys if value_at(config, key) != value_at(defaults, key))
