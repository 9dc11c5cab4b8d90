"""Keys that contradict `rollout.sampling`, found before anything is loaded."""

from __future__ import annotations

from verl.trainer.config import RunConfig
from verl.trainer.config_check import ConfigError
from verl.trainer.ppo.critic import needs_values
from verl.trainer.ppo.per_agent import agent_config, averages_trajectories, group_fields
from verl.trainer.ppo.registry import ESTIMATORS, estimator_needs, estimator_takes
from verl.trainer.untrained import by_agent, trained_agents
from verl.utils.names import slug

# Fields that together name one call of one episode: in parallel sampling, one sample.
CALL_FIELDS = {"traj_uid", "turn", "call"}


def check_sampling(config: RunConfig) -> None:
    """Refuse what makes no sense beside `rollout.sampling`.

    Raises ConfigError naming both keys, PlacementError for an agent of `rollout.tree.k_per_agent` that is not in the team.
    """
    tree = config.rollout.sampling == "tree"
    if tree:
        _check_tree(config)
    own_k = candidates_of(config)
    for agent_id in trained_agents(config.agent):
        settings = agent_config(config.algorithm, agent_id)
        own = f" (agent '{agent_id}')" if config.algorithm.per_agent else ""
        estimator, fields = str(settings.adv_estimator), group_fields(settings)
        if tree:
            _check_estimator(estimator, own)
            if averages_trajectories(settings, estimator) and estimator_takes(estimator, "traj_index"):
                raise ConfigError(
                    f"rollout.sampling=tree compares the candidates of a call, but the samples of an episode are averaged first by "
                    f"algorithm.statistics_over={settings.statistics_over} with adv_estimator={estimator} and groups {fields}{own}; "
                    "set algorithm.statistics_over=samples, algorithm.adv_estimator=grpo"
                )
        one = f"rollout.tree.k_per_agent.{slug(agent_id)}=1" if tree else "rollout.sampling=parallel"
        compares = estimator_takes(estimator, "index")
        if (not tree or own_k.get(agent_id) == 1) and set(fields) >= CALL_FIELDS and settings.singleton == "zero" and compares:
            raise ConfigError(
                f"algorithm.group_by={fields}{own} holds one sample a group with {one}, so every advantage is 0; "
                f"set {'2 or more candidates' if tree else 'rollout.sampling=tree'}, or algorithm.group_by=[uid,agent_id,turn]"
            )


def candidates_of(config: RunConfig) -> dict[str, int]:
    """What `rollout.tree.k_per_agent` gives, by the agents' names. Raises PlacementError for one that is not in the team."""
    given = config.rollout.tree.k_per_agent
    return {agent: given[name] for agent, name in by_agent("rollout.tree.k_per_agent", given, config.agent.agent_ids).items()}


def _check_tree(config: RunConfig) -> None:
    if config.rollout.tree.k < 2:
        raise ConfigError(f"rollout.tree.k={config.rollout.tree.k}: a tree needs 2 candidates or more; rollout.sampling=parallel has one")
    for name, own in config.rollout.tree.k_per_agent.items():
        if own < 1:
            raise ConfigError(f"rollout.tree.k_per_agent.{name}={own}: expected 1 candidate or more")
    scope, mode = config.reward.team_scope, config.reward.propagation.mode
    if scope != "call" or mode != "none":
        raise ConfigError(
            f"rollout.sampling=tree pays a candidate what its own action earned, but reward.team_scope={scope} and "
            f"reward.propagation.mode={mode} pay what came later; set reward.team_scope=call and reward.propagation.mode=none"
        )


def _check_estimator(estimator: str, own: str) -> None:
    if needs_values(estimator):
        why = "reads values along an episode's calls"
    elif estimator_needs(estimator, "reward_baselines"):
        why = "takes the reward of a greedy episode as the baseline"
    else:
        why = ESTIMATORS.traits(estimator).follows_calls
    if not why:
        return
    raise ConfigError(
        f"rollout.sampling=tree compares the candidates of a call, but algorithm.adv_estimator={estimator}{own} {why}; "
        "use an estimator with a group baseline, such as grpo, or rollout.sampling=parallel"
    )
