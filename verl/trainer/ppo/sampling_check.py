"""Keys of dynamic sampling that contradict other keys, found before anything is played."""

from __future__ import annotations

import logging

from verl.trainer.config import RunConfig
from verl.trainer.config.names import FILTER_METRICS
from verl.trainer.config_check import TASK_FIELDS, ConfigError
from verl.trainer.ppo.critic import needs_values
from verl.trainer.ppo.per_agent import agent_config, group_fields
from verl.trainer.ppo.registry import ESTIMATORS, estimator_needs
from verl.trainer.untrained import trained_agents

logger = logging.getLogger(__name__)


def check_filter_groups(config: RunConfig) -> None:
    """Refuse what makes no sense beside `algorithm.filter_groups.enable`.

    Raises ConfigError naming both keys.
    """
    algorithm, rule = config.algorithm, config.algorithm.filter_groups
    if rule.metric not in FILTER_METRICS:
        raise ConfigError(f"algorithm.filter_groups.metric={rule.metric!r}: expected one of {', '.join(FILTER_METRICS)}")
    if rule.max_num_gen_batches < 0:
        raise ConfigError(f"algorithm.filter_groups.max_num_gen_batches={rule.max_num_gen_batches}: expected at least 0 (0: no limit)")
    if not rule.enable:
        return
    for agent_id in trained_agents(config.agent):
        _check_agent(config, agent_id)
    if algorithm.use_kl_in_reward:
        logger.warning("algorithm.filter_groups looks at rewards before algorithm.use_kl_in_reward subtracts the KL")


def _check_agent(config: RunConfig, agent_id: str) -> None:
    settings = agent_config(config.algorithm, agent_id)
    own = f" (agent '{agent_id}')" if config.algorithm.per_agent else ""
    estimator = settings.adv_estimator
    traits = ESTIMATORS.traits(estimator)
    if not traits.grouped or needs_values(estimator) or estimator_needs(estimator, "reward_baselines"):
        raise ConfigError(
            f"algorithm.filter_groups.enable=true drops groups of equal rewards, but algorithm.adv_estimator={estimator}{own} "
            "learns from them as well: turn the filter off, or use an estimator with a group baseline, such as grpo"
        )
    fields = group_fields(settings)
    if not set(fields) & set(TASK_FIELDS):
        raise ConfigError(
            f"algorithm.filter_groups.enable=true needs groups within a task, but algorithm.group_by={fields}{own} compares tasks with "
            f"each other: add one of {', '.join(TASK_FIELDS)}, or turn the filter off"
        )
    if traits.learns_from:
        logger.warning(
            "algorithm.filter_groups drops groups in which %s does not differ, also where %s do, from which adv_estimator=%s%s learns",
            config.algorithm.filter_groups.metric, traits.learns_from, estimator, own,
        )  # fmt: skip
    if config.env.rollout.n == 1 and "traj_uid" not in fields and settings.singleton == "zero":
        raise ConfigError(
            "algorithm.filter_groups.enable=true with env.rollout.n=1: groups of one episode have nothing that differs; "
            "set env.rollout.n to 2 or more, or turn the filter off"
        )
