"""Checks of the groups that estimators compare, and of other settings that leave nothing to learn; part of
`cross_checks`.
"""

from __future__ import annotations

import logging
from typing import Any

from verl.trainer.config import RunConfig, TrainerConfig
from verl.trainer.config.algorithm import TASK_FIELDS
from verl.trainer.config.reward import check_tree_rewards
from verl.trainer.config.run import follows_committed
from verl.trainer.config.spec import ConfigError, keys
from verl.trainer.placement.table import Placement
from verl.trainer.placement.untrained import by_agent, trained_agents
from verl.trainer.ppo.critic import critic_agents, needs_values
from verl.trainer.ppo.per_agent import agent_config, averages_trajectories, group_fields
from verl.trainer.ppo.registry import ESTIMATORS, estimator_needs, estimator_takes, plain_name
from verl.utils.names import slug, value_at

logger = logging.getLogger(__name__)

# Fields that together identify one call of one episode: in parallel sampling, one sample.
CALL_FIELDS = {"traj_uid", "turn", "call"}
# Keys that only a validation reads.
VALIDATION_KEYS = ("data.val_batch_size", "data.val_max_samples", "env.rollout.val_n", "trainer.test_freq")


def _agent_note(config: RunConfig, agent_id: str) -> str:
    """Return the agent as a note after a key of `algorithm` in a message; empty if no agent has its
    own keys.
    """
    return f" (agent '{agent_id}')" if config.algorithm.per_agent else ""


def check_filter_groups(config: RunConfig) -> None:
    """Raise ConfigError for keys that contradict `algorithm.filter_groups.enable`."""
    if not config.algorithm.filter_groups.enable:
        return
    for agent_id in trained_agents(config.agent):
        _check_filtered(config, agent_id)
    if config.algorithm.use_kl_in_reward:
        logger.warning(
            "algorithm.filter_groups compares rewards before algorithm.use_kl_in_reward subtracts the KL"
        )


def _check_filtered(config: RunConfig, agent_id: str) -> None:
    settings = agent_config(config.algorithm, agent_id)
    own = _agent_note(config, agent_id)
    estimator = settings.adv_estimator
    fields = group_fields(settings)
    traits = ESTIMATORS.traits(estimator)
    if not traits.grouped or needs_values(estimator) or estimator_needs(estimator, "reward_baselines"):
        raise ConfigError(
            "algorithm.filter_groups.enable=true drops groups of equal rewards, but "
            f"algorithm.adv_estimator={estimator}{own} learns from them as well: turn the filter off, or use "
            "an estimator with a group baseline, such as grpo"
        )
    if not set(fields) & set(TASK_FIELDS):
        raise ConfigError(
            "algorithm.filter_groups.enable=true needs groups within a task, but "
            f"algorithm.group_by={fields}{own} compares tasks with each other: add one of "
            f"{', '.join(TASK_FIELDS)}, or turn the filter off"
        )
    if traits.learns_from:
        logger.warning(
            "algorithm.filter_groups drops groups in which %s is equal, even if %s, from which "
            "adv_estimator=%s%s learns, differ",
            config.algorithm.filter_groups.metric, traits.learns_from, estimator, own,
        )  # fmt: skip
    if config.env.rollout.n == 1 and "traj_uid" not in fields and settings.singleton == "zero":
        raise ConfigError(
            "algorithm.filter_groups.enable=true with env.rollout.n=1: rewards in a group of one episode "
            "cannot differ; set env.rollout.n to 2 or more, or turn the filter off"
        )


def candidates_of(config: RunConfig) -> dict[str, int]:
    """Return `rollout.tree.k_per_agent` by agent name. Raises PlacementError for an agent that is not in the
    team.
    """
    given = config.rollout.tree.k_per_agent
    return {
        agent: given[name]
        for agent, name in by_agent("rollout.tree.k_per_agent", given, config.agent.agent_ids).items()
    }


def check_sampling(config: RunConfig, placement: Placement) -> None:
    """Raise ConfigError for keys that contradict `rollout.sampling`."""
    tree = config.rollout.sampling == "tree"
    committed = follows_committed(config)
    if tree:
        check_tree_rewards(config.reward, config.rollout.tree.returns)
    if committed and config.algorithm.filter_groups.enable:
        raise ConfigError(
            "algorithm.filter_groups.enable=true drops rows of groups of equal rewards, but with "
            "rollout.tree.returns=committed a row also learns from the other candidates of its call, which "
            "are no group: turn the filter off, or use rollout.tree.returns=step"
        )
    own_k = candidates_of(config)
    for agent in placement.trained:
        settings = agent_config(config.algorithm, agent.agent_id)
        own = _agent_note(config, agent.agent_id)
        estimator = str(settings.adv_estimator)
        fields = group_fields(settings)
        if tree and not committed:
            _check_tree_estimator(settings, own)
            if averages_trajectories(settings, estimator) and estimator_takes(estimator, "traj_index"):
                raise ConfigError(
                    "rollout.sampling=tree compares the candidates of a call, but the samples of an episode "
                    f"are averaged first with algorithm.statistics_over={settings.statistics_over} with "
                    f"adv_estimator={estimator} and groups {fields}{own}; set "
                    "algorithm.statistics_over=samples, algorithm.adv_estimator=grpo, or "
                    "rollout.tree.returns=committed"
                )
        one = f"rollout.tree.k_per_agent.{slug(agent.agent_id)}=1" if tree else "rollout.sampling=parallel"
        one = "rollout.tree.returns=committed" if committed else one
        alone = not tree or committed or own_k.get(agent.agent_id) == 1
        compares = estimator_takes(estimator, "index") and settings.singleton == "zero"
        if alone and compares and set(fields) >= CALL_FIELDS:
            zero = "every advantage of the estimator" if committed else "every advantage"
            raise ConfigError(
                f"algorithm.group_by={fields}{own} holds one sample per group with {one}, so {zero} is 0; "
                f"set {_more_samples(tree, committed)}, or algorithm.group_by=[uid,agent_id,turn]"
            )


def _more_samples(tree: bool, committed: bool) -> str:
    if committed:
        return "rollout.tree.returns=step"
    return "2 or more candidates" if tree else "rollout.sampling=tree"


def _check_tree_estimator(settings: Any, own: str) -> None:
    """Raise ConfigError for an estimator that has no meaning if nothing follows a candidate's own action."""
    estimator = str(settings.adv_estimator)
    if needs_values(estimator):
        why = (
            "with algorithm.gae.level=turn reads values along an episode's calls"
            if settings.gae.level == "turn"
            else ""
        )
    else:
        why = ESTIMATORS.traits(estimator).follows_calls
    if not why:
        return
    raise ConfigError(
        "rollout.sampling=tree with rollout.tree.returns=step rewards each candidate for its own action "
        f"alone, but algorithm.adv_estimator={estimator}{own} {why}; set rollout.tree.returns=committed, or "
        "use another estimator, such as grpo"
    )


def check_signal(config: RunConfig, placement: Placement) -> None:
    """Raise ConfigError if every advantage of a training run is 0, and warn of other settings that prevent
    learning.
    """
    if not config.trainer.val_only:
        _check_groups(config, placement)
        _warn_of_rates(config, placement)
        _warn_of_repeated_rewards(config, placement)
    if not config.data.val_files:
        _warn_of_validation(config)


def warn_of_warmup(trainer: TrainerConfig, steps: int) -> None:
    """Warn if all `steps` of the run are critic warm-up."""
    if trainer.critic_warmup >= steps:
        logger.warning(
            "trainer.critic_warmup=%d: the run has %d steps, so no policy is updated",
            trainer.critic_warmup,
            steps,
        )


def _check_groups(config: RunConfig, placement: Placement) -> None:
    """Check groups of episodes; in a tree of single steps, candidates of a call are compared with
    each other.
    """
    alone: dict[str, str] = {}
    for agent in (
        placement.trained if config.rollout.sampling == "parallel" or follows_committed(config) else ()
    ):
        settings = agent_config(config.algorithm, agent.agent_id)
        estimator = str(settings.adv_estimator)
        fields = group_fields(settings)
        if settings.singleton != "zero" or not estimator_takes(estimator, "index"):
            continue
        averaged = averages_trajectories(settings, estimator) and estimator_takes(estimator, "traj_index")
        if averaged and "traj_uid" in fields:
            raise ConfigError(
                f"algorithm.group_by={fields} (agent '{agent.agent_id}') holds one trajectory per group, and "
                f"algorithm.statistics_over={settings.statistics_over} averages its samples first, so every "
                "advantage is 0; group by uid instead of traj_uid, or set algorithm.statistics_over=samples"
            )
        if config.env.rollout.n == 1 and {"uid", "task_id"} & set(fields):
            alone[agent.agent_id] = estimator
    if alone:
        logger.warning(
            "env.rollout.n=1: algorithm.adv_estimator=%s compares the episodes of a task, and there is one, "
            "so that advantages of %s are 0 unless rewards differ between its own calls; set env.rollout.n "
            "to 2 or more, or use an estimator without groups",
            ", ".join(sorted(set(alone.values()))), ", ".join(alone),
        )  # fmt: skip


def _warn_of_rates(config: RunConfig, placement: Placement) -> None:
    if still := [agent.agent_id for agent in placement.trained if agent.config.actor.optim.lr == 0]:
        logger.warning(
            "actor_rollout_ref.actor.optim.lr=0: the policies of %s do not change", ", ".join(still)
        )
    if config.critic.optim.lr == 0 and critic_agents(config, placement):
        logger.warning("critic.optim.lr=0: the critics do not change")


def _warn_of_repeated_rewards(config: RunConfig, placement: Placement) -> None:
    settings = {agent.agent_id: agent_config(config.algorithm, agent.agent_id) for agent in placement.trained}
    by_turn = [
        name
        for name, own in settings.items()
        if plain_name(own.adv_estimator) == "gae" and own.gae.level == "turn"
    ]
    if by_turn and config.reward.team_scope == "episode":  # as reward.propagation requires
        logger.warning(
            "algorithm.gae.level=turn adds up the rewards of an agent's calls, but with "
            "reward.team_scope=episode or reward.propagation each call of %s has the team reward of the "
            "episode, which counts once per call; set reward.team_scope=turn or call",
            ", ".join(by_turn),
        )


def _warn_of_validation(config: RunConfig) -> None:
    sampling = [name for name in keys(RunConfig) if name.startswith("actor_rollout_ref.rollout.val_kwargs.")]
    changed = [
        name
        for name in (*VALIDATION_KEYS, *sampling)
        if value_at(config, name) != keys(RunConfig)[name].default
    ]
    if changed:
        logger.warning("%s: no effect without data.val_files", ", ".join(changed))
