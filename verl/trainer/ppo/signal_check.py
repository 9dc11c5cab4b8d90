"""Runs that can learn nothing, found before anything is loaded: refused where every advantage is 0, else one warning."""

from __future__ import annotations

import logging

from verl.trainer.config import RunConfig, TrainerConfig
from verl.trainer.config.spec import describe
from verl.trainer.config_check import ConfigError
from verl.trainer.placement import Placement
from verl.trainer.ppo.critic import critic_agents
from verl.trainer.ppo.per_agent import agent_config, averages_trajectories, group_fields
from verl.trainer.ppo.registry import estimator_takes
from verl.utils.names import value_at

logger = logging.getLogger(__name__)

# Keys that only a validation reads; with those under `actor_rollout_ref.rollout.val_kwargs`.
VALIDATION_KEYS = ("data.val_batch_size", "data.val_max_samples", "env.rollout.val_n", "trainer.test_freq")


def check_signal(config: RunConfig, placement: Placement) -> None:
    """Look at a training run for what keeps its policies as they are.

    Raises ConfigError for groups that hold one trajectory each.
    """
    if not config.trainer.val_only:
        _check_groups(config, placement)
        _warn_of_rates(config, placement)
    if not config.data.val_files:
        _warn_of_validation(config)


def warn_of_warmup(trainer: TrainerConfig, steps: int) -> None:
    """Say when policies wait for their critics in all `steps` of the run."""
    if trainer.critic_warmup >= steps:
        logger.warning("trainer.critic_warmup=%d: the run has %d steps, so no policy is updated", trainer.critic_warmup, steps)


def _check_groups(config: RunConfig, placement: Placement) -> None:
    """In parallel sampling; the candidates of a tree are compared with each other."""
    alone: dict[str, str] = {}
    for agent in placement.trained if config.rollout.sampling == "parallel" else ():
        settings = agent_config(config.algorithm, agent.agent_id)
        estimator, fields = str(settings.adv_estimator), group_fields(settings)
        if settings.singleton != "zero" or not estimator_takes(estimator, "index"):
            continue
        averaged = averages_trajectories(settings, estimator) and estimator_takes(estimator, "traj_index")
        if averaged and "traj_uid" in fields:
            raise ConfigError(
                f"algorithm.group_by={fields} (agent '{agent.agent_id}') holds one trajectory a group, and "
                f"algorithm.statistics_over={settings.statistics_over} averages its samples first, so every advantage is 0; group by uid "
                "instead of traj_uid, or set algorithm.statistics_over=samples"
            )
        if config.env.rollout.n == 1 and {"uid", "task_id"} & set(fields):
            alone[agent.agent_id] = estimator
    if alone:
        logger.warning(
            "env.rollout.n=1: algorithm.adv_estimator=%s compares the episodes of a task, and there is one, so that advantages of %s are 0 "
            "unless its own calls earn differently; set env.rollout.n to 2 or more, or use an estimator without groups",
            ", ".join(sorted(set(alone.values()))), ", ".join(alone),
        )  # fmt: skip


def _warn_of_rates(config: RunConfig, placement: Placement) -> None:
    if still := [agent.agent_id for agent in placement.trained if agent.config.actor.optim.lr == 0]:
        logger.warning("actor_rollout_ref.actor.optim.lr=0: the policies of %s do not change", ", ".join(still))
    if config.critic.optim.lr == 0 and critic_agents(config, placement):
        logger.warning("critic.optim.lr=0: the critics do not change")


def _warn_of_validation(config: RunConfig) -> None:
    default = RunConfig()
    sampling = [name for name, *_ in describe(RunConfig) if name.startswith("actor_rollout_ref.rollout.val_kwargs.")]
    if changed := [name for name in (*VALIDATION_KEYS, *sampling) if value_at(config, name) != value_at(default, name)]:
        logger.warning("%s: no effect without data.val_files", ", ".join(changed))
