"""Checks of the groups that estimators compare, and of other settings that leave nothing to learn;
part of `checks`.
"""

from __future__ import annotations

import logging

from verl.trainer.config import (
    AlgorithmConfig,
    CollectConfig,
    CriticConfig,
    EnvConfig,
    RewardConfig,
    RunConfig,
    TrainerConfig,
)
from verl.trainer.config.algorithm import TASK_FIELDS
from verl.trainer.config.reward import check_tree_rewards
from verl.trainer.config.spec import ConfigError, keys
from verl.trainer.plan.agents import AgentPlan
from verl.trainer.plan.run import RunPlan
from verl.utils.names import slug, value_at

logger = logging.getLogger(__name__)

# Fields that together identify one call of one episode: in parallel sampling, one sample.
CALL_FIELDS = {"traj_uid", "turn", "call"}
# Keys that only a validation reads.
VALIDATION_KEYS = ("data.val_batch_size", "data.val_max_samples", "env.rollout.val_n", "trainer.test_freq")


def _agent_note(algorithm: AlgorithmConfig, agent_id: str) -> str:
    """Return the agent as a note after a key of `algorithm` in a message; empty if no agent has its
    own keys.
    """
    return f" (agent '{agent_id}')" if algorithm.per_agent else ""


def check_filter_groups(algorithm: AlgorithmConfig, env: EnvConfig, plan: RunPlan) -> None:
    """Raise ConfigError for keys that contradict `algorithm.filter_groups`."""
    if not algorithm.filter_groups.enable:
        return
    for agent in plan.trained:
        _check_filtered(algorithm, env, agent)
    if algorithm.use_kl_in_reward:
        logger.warning(
            "algorithm.filter_groups compares rewards before algorithm.kl_ctrl.kl_coef subtracts the KL"
        )


def _check_filtered(algorithm: AlgorithmConfig, env: EnvConfig, agent: AgentPlan) -> None:
    agent_note = _agent_note(algorithm, agent.agent_id)
    estimator = agent.estimator
    fields = agent.group_fields
    traits = agent.traits
    metric = algorithm.filter_groups.metric
    if not traits.grouped or agent.needs_values or agent.needs("reward_baselines"):
        raise ConfigError(
            f"algorithm.filter_groups.metric={metric} drops groups of equal rewards, but "
            f"algorithm.adv_estimator={estimator}{agent_note} learns from them as well: turn the "
            "filter off, or use an estimator with a group baseline, such as grpo"
        )
    if not set(fields) & set(TASK_FIELDS):
        raise ConfigError(
            f"algorithm.filter_groups.metric={metric} needs groups within a task, but "
            f"algorithm.group_by={fields}{agent_note} compares tasks with each other: add one of "
            f"{', '.join(TASK_FIELDS)}, or turn the filter off"
        )
    if traits.learns_from:
        logger.warning(
            "algorithm.filter_groups drops groups in which %s is equal, even if %s, from which "
            "adv_estimator=%s%s learns, differ",
            metric, traits.learns_from, estimator, agent_note,
        )  # fmt: skip
    if env.rollout.n == 1 and "traj_uid" not in fields and agent.algorithm.singleton == "zero":
        raise ConfigError(
            f"algorithm.filter_groups.metric={metric} with env.rollout.n=1: rewards in a group of one "
            "episode cannot differ; set env.rollout.n to 2 or more, or turn the filter off"
        )


def check_sampling(
    algorithm: AlgorithmConfig, reward: RewardConfig, rollout: CollectConfig, plan: RunPlan
) -> None:
    """Raise ConfigError for keys that contradict `rollout.sampling`."""
    tree = plan.tree
    committed = plan.committed
    if tree:
        check_tree_rewards(reward, rollout.tree.returns)
    if committed and algorithm.filter_groups.enable:
        raise ConfigError(
            f"algorithm.filter_groups.metric={algorithm.filter_groups.metric} drops rows of groups of "
            "equal rewards, but with "
            "rollout.tree.returns=committed a row also learns from the other candidates of its "
            "call, which are no group: turn the filter off, or use rollout.tree.returns=step"
        )
    for agent in plan.trained:
        agent_note = _agent_note(algorithm, agent.agent_id)
        fields = agent.group_fields
        if tree and not committed:
            _check_tree_estimator(agent, agent_note)
            if agent.averages_trajectories:
                raise ConfigError(
                    "rollout.sampling=tree compares the candidates of a call, but the samples of "
                    "an episode are averaged first with "
                    f"algorithm.statistics_over={agent.algorithm.statistics_over} with "
                    f"adv_estimator={agent.estimator} and groups {fields}{agent_note}; set "
                    "algorithm.statistics_over=samples, algorithm.adv_estimator=grpo, or "
                    "rollout.tree.returns=committed"
                )
        one = f"rollout.tree.k_per_agent.{slug(agent.agent_id)}=1" if tree else "rollout.sampling=parallel"
        one = "rollout.tree.returns=committed" if committed else one
        alone = not tree or committed or agent.candidates == 1
        if alone and agent.compares_groups and set(fields) >= CALL_FIELDS:
            zero = "every advantage of the estimator" if committed else "every advantage"
            raise ConfigError(
                f"algorithm.group_by={fields}{agent_note} holds one sample per group with {one}, "
                f"so {zero} is 0; set {_more_samples(tree, committed)}, or "
                "algorithm.group_by=[uid,agent_id,turn]"
            )


def _more_samples(tree: bool, committed: bool) -> str:
    if committed:
        return "rollout.tree.returns=step"
    return "2 or more candidates" if tree else "rollout.sampling=tree"


def _check_tree_estimator(agent: AgentPlan, agent_note: str) -> None:
    """Raise ConfigError for an estimator that has no meaning if nothing follows a candidate's own
    action.
    """
    if agent.needs_values:
        why = (
            "with algorithm.gae.level=turn reads values along an episode's calls"
            if agent.algorithm.gae.level == "turn"
            else ""
        )
    else:
        why = agent.traits.follows_calls
    if not why:
        return
    raise ConfigError(
        "rollout.sampling=tree with rollout.tree.returns=step rewards each candidate for its own "
        f"action alone, but algorithm.adv_estimator={agent.estimator}{agent_note} {why}; set "
        "rollout.tree.returns=committed, or use another estimator, such as grpo"
    )


def check_signal(config: RunConfig, plan: RunPlan) -> None:
    """Raise ConfigError if every advantage of a training run is 0, and warn of other settings that
    prevent learning.
    """
    if not config.trainer.val_only:
        _check_groups(config.env, plan)
        _warn_of_rates(config.critic, plan)
        _warn_of_repeated_rewards(config.reward, plan)
    validation_keys = [
        name
        for name, validation_key in keys(RunConfig).items()
        if (name in VALIDATION_KEYS or name.startswith("actor_rollout_ref.rollout.val_kwargs."))
        and value_at(config, name) != validation_key.default
    ]
    if validation_keys and not config.data.val_files:
        logger.warning("%s: no effect without data.val_files", ", ".join(validation_keys))


def warn_of_warmup(trainer: TrainerConfig, steps: int) -> None:
    """Warn if all `steps` of the run are critic warm-up."""
    if trainer.critic_warmup >= steps:
        logger.warning(
            "trainer.critic_warmup=%d: the run has %d steps, so no policy is updated",
            trainer.critic_warmup,
            steps,
        )


def _check_groups(env: EnvConfig, plan: RunPlan) -> None:
    """Check groups of episodes; in a tree of single steps, candidates of a call are compared with
    each other.
    """
    alone: dict[str, str] = {}
    for agent in plan.trained if not plan.tree or plan.committed else ():
        fields = agent.group_fields
        if not agent.compares_groups:
            continue
        if agent.averages_trajectories and "traj_uid" in fields:
            raise ConfigError(
                f"algorithm.group_by={fields} (agent '{agent.agent_id}') holds one trajectory per "
                f"group, and algorithm.statistics_over={agent.algorithm.statistics_over} averages "
                "its samples first, so every advantage is 0; group by uid instead of traj_uid, or "
                "set algorithm.statistics_over=samples"
            )
        if env.rollout.n == 1 and {"uid", "task_id"} & set(fields):
            alone[agent.agent_id] = agent.estimator
    if alone:
        logger.warning(
            "env.rollout.n=1: algorithm.adv_estimator=%s compares the episodes of a task, and "
            "there is one, so that advantages of %s are 0 unless rewards differ between its own "
            "calls; set env.rollout.n to 2 or more, or use an estimator without groups",
            ", ".join(sorted(set(alone.values()))), ", ".join(alone),
        )  # fmt: skip


def _warn_of_rates(critic: CriticConfig, plan: RunPlan) -> None:
    if still := [agent.agent_id for agent in plan.trained if agent.config.actor.optim.lr == 0]:
        logger.warning(
            "actor_rollout_ref.actor.optim.lr=0: the policies of %s do not change", ", ".join(still)
        )
    if critic.optim.lr == 0 and plan.critics:
        logger.warning("critic.optim.lr=0: the critics do not change")


def _warn_of_repeated_rewards(reward: RewardConfig, plan: RunPlan) -> None:
    by_turn = [
        agent.agent_id
        for agent in plan.trained
        if agent.estimator == "gae" and agent.algorithm.gae.level == "turn"
    ]
    # team_scope is episode where rewards are propagated, too
    if by_turn and reward.team_scope == "episode":
        logger.warning(
            "algorithm.gae.level=turn adds up the rewards of an agent's calls, but with "
            "reward.team_scope=episode or reward.propagation each call of %s has the team reward "
            "of the episode, which counts once per call; set reward.team_scope=turn or call",
            ", ".join(by_turn),
        )
