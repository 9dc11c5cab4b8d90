"""Checks of the keys of `async_training`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from verl.trainer.config.algorithm import TASK_FIELDS, AlgorithmConfig
from verl.trainer.config.reward import RewardConfig
from verl.trainer.config.run import AsyncTrainingConfig, DataConfig, RunConfig
from verl.trainer.config.spec import ConfigError
from verl.trainer.plan.agents import group_fields
from verl.trainer.plan.learners import PolicyPlan
from verl.trainer.plan.registry import ESTIMATORS
from verl.trainer.plan.run import RunPlan
from verl.utils.names import did_you_mean

logger = logging.getLogger(__name__)


def check_async_training(config: RunConfig, plan: RunPlan) -> None:
    """Raise ConfigError for keys of `async_training` that contradict others, and warn of several
    optimizer steps on older samples.

    Contradictions are a policy that does not exist, a bound under which a group can be too old
    whatever a step waits for, a lead for which no groups are sampled, small batches that no group
    could wait for, that are larger than a batch, or whose rewards or advantages depend on the whole
    batch, and dynamic sampling by rewards that depend on other groups.
    """
    settings = config.async_training
    policies = plan.policies
    for name in settings.per_policy:
        if name not in policies:
            policy_names = ", ".join(policies)
            raise ConfigError(
                f"async_training.per_policy.{name}: no such policy{did_you_mean(name, policies)}; "
                f"trained policies are {policy_names}"
            )
    for policy, policy_plan in policies.items():
        pace = policy_plan.pace
        if settings.mode != "fully_async":
            continue
        least = pace.least_bound if settings.max_off_policy_strategy == "wait" else pace.trigger - 1
        if settings.batch_timeout_s:
            # the rest of a batch is trained by a later step
            least = max(least, 1)
        if pace.bound < least:
            where = (
                f"async_training.per_policy.{policy}" if policy in settings.per_policy else "async_training"
            )
            raise ConfigError(
                f"{where}.max_off_policy_threshold={pace.bound} is too low for "
                f"staleness_threshold={pace.staleness:g} and "
                f"trigger_parameter_sync_step={pace.trigger}: episodes would be too old whatever a "
                f"step waits for; set it to {least} or more, or lower the others"
                + (
                    ", or set async_training.max_off_policy_strategy=drop"
                    if pace.bound >= pace.trigger - 1
                    else ""
                )
            )
    if settings.mode == "fully_async":
        _check_lead(settings, policies)
        _check_filter(config.algorithm, config.reward)
    if settings.batch_timeout_s:
        _check_small_batches(settings, config.data, [config.algorithm, *(a.algorithm for a in plan.trained)])
        _check_whole_batch_keys(settings, config.algorithm, config.reward)
    _warn_of_updates(settings, policies)


def _check_lead(settings: AsyncTrainingConfig, policies: Mapping[str, PolicyPlan]) -> None:
    """Raise ConfigError for a lead that no policy can have over a slower one, unless it is the
    default.
    """
    paces = [policy.pace for policy in policies.values()]
    most = max(pace.bound if settings.batch_timeout_s else pace.most_lead for pace in paces)
    if settings.max_lead > max(most, AsyncTrainingConfig().max_lead):
        more = (
            "max_off_policy_threshold"
            if settings.batch_timeout_s
            else "staleness_threshold (and max_off_policy_threshold)"
        )
        raise ConfigError(
            f"async_training.max_lead={settings.max_lead} has no effect beyond {most}: groups of "
            "later steps are not sampled before the slowest policy has trained; set it to at most "
            f"{most}, or raise async_training.{more} to {settings.max_lead}"
        )


def _check_filter(algorithm: AlgorithmConfig, reward: RewardConfig) -> None:
    """Raise ConfigError if the rewards by which a group is kept or rejected, when it ends, depend
    on groups that end later.
    """
    rule = algorithm.filter_groups
    spread = reward.propagation
    over = [f"theta_quantile={spread.theta_quantile:g}"] if spread.theta_quantile is not None else []
    over += [f"min_pass_rate={spread.min_pass_rate:g}"] if spread.min_pass_rate else []
    if rule.enable and rule.metric != "local_reward" and spread.mode == "threshold" and over:
        raise ConfigError(
            "async_training.mode=fully_async decides about a group when it ends, but with "
            f"reward.propagation.mode=threshold and its {' and '.join(over)} the {rule.metric} "
            "that algorithm.filter_groups compares depends on all groups of the step; set "
            "reward.propagation.theta_quantile=null and min_pass_rate=0, "
            "algorithm.filter_groups.metric=local_reward, or async_training.mode=one_step_off"
        )


def _warn_of_updates(settings: AsyncTrainingConfig, policies: Mapping[str, PolicyPlan]) -> None:
    """Warn of several optimizer steps on a batch of older samples, which add to their staleness."""
    updates = {policy: plan.updates for policy, plan in policies.items() if plan.updates > 1}
    if updates and not settings.fresh:
        logger.warning(
            "async_training.mode=%s trains on samples of older weights, and %s: each moves the "
            "policy further from the weights that sampled, beyond what "
            "algorithm.rollout_correction measures before the first one; use fewer (ppo_epochs=1, "
            "no mini-batches) or less staleness if the gap grows (docs/async.md#what-to-watch)",
            settings.mode,
            ", ".join(f"{policy} makes {count} optimizer steps a batch" for policy, count in updates.items()),
        )


def _small_batches(settings: AsyncTrainingConfig) -> str:
    """Return the beginning of messages about batches of different sizes."""
    return (
        f"async_training.batch_timeout_s={settings.batch_timeout_s:g} trains on batches of different "
        "sizes, but"
    )


def _check_small_batches(
    settings: AsyncTrainingConfig, data: DataConfig, algorithms: Sequence[AlgorithmConfig]
) -> None:
    """Raise ConfigError for a least size above that of a batch, and for an estimator that compares
    all rows of a batch.
    """
    least = settings.least_batch_size
    batch = data.train_batch_size
    if least > batch:
        raise ConfigError(
            f"async_training.least_batch_size={least} is more than data.train_batch_size={batch}; lower it"
        )
    for algorithm in algorithms:
        traits = ESTIMATORS.traits(algorithm.adv_estimator)
        compares = traits.grouped and not set(group_fields(algorithm)) & set(TASK_FIELDS)
        if traits.whole_batch or compares:
            what = (
                f"group_by={group_fields(algorithm)} compares tasks"
                if compares
                else f"adv_estimator={algorithm.adv_estimator} scales advantages"
            )
            raise ConfigError(
                f"{_small_batches(settings)} algorithm.{what} of a whole batch; use an estimator that "
                "compares the episodes of a task, such as grpo with group_by=[uid], or leave "
                "batch_timeout_s out"
            )


def _check_whole_batch_keys(
    settings: AsyncTrainingConfig, algorithm: AlgorithmConfig, reward: RewardConfig
) -> None:
    """Raise ConfigError for a key whose effect depends on all rows of a batch."""
    normalizes = algorithm.rollout_correction.rollout_is_batch_normalize
    conflicts = {
        "algorithm.rollout_correction.rollout_is_batch_normalize=true": normalizes,
        "reward.propagation.mode=threshold": reward.propagation.mode == "threshold",
    }
    for key in (key for key, holds in conflicts.items() if holds):
        raise ConfigError(
            f"{_small_batches(settings)} {key} depends on the whole batch; leave one of them out"
        )
