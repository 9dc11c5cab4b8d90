"""The plan of a run: agents, policies and worker groups, with what follows from the keys of
`algorithm`, `critic` and `rollout`, computed once.

`verl.trainer.plan.checks.resolve` returns it for a checked configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from verl.trainer.config import AgentConfig, CollectConfig, RunConfig
from verl.trainer.plan.agents import AgentPlan, ApiPlan, plan_agent, plan_api_agent
from verl.trainer.plan.groups import GroupPlan, plan_groups
from verl.trainer.plan.learners import PolicyPlan, plan_policies
from verl.trainer.plan.placement import Placement
from verl.trainer.plan.untrained_agents import by_agent


@dataclass(frozen=True)
class RunPlan(Placement):
    """A placement whose rows are plans of agents, and whose worker groups have devices.

    Attributes:
        policies: the trained policies, by `policy_id`.
        speakers: agent -> the plan of the agent whose policy generates its replies: its own, unless
            an evaluation swaps roles (`agent.role_policies`).
        on_policy: whether every policy has one update per step on samples of its current weights:
            these are then the old log-probs' too.
        tree: whether training episodes are trees (`rollout.sampling=tree`).
        committed: whether estimators see the committed replies of trees as episodes
            (`rollout.tree.returns=committed`).
        candidates: candidates per call of the agents in `rollout.tree.k_per_agent`, by name.
        repeats: `rollout.repeat_calls` by agent name.
        critic: whether there are critics (`critic.enable`); None: where an estimator needs values.
        trains: whether the run trains; an evaluation has no critics.
    """

    agents: tuple[AgentPlan, ...]
    groups: tuple[GroupPlan, ...]
    api: tuple[ApiPlan, ...] = ()
    reward_model: AgentPlan | None = None
    policies: Mapping[str, PolicyPlan] = field(default_factory=dict)
    speakers: Mapping[str, AgentPlan] = field(default_factory=dict)
    on_policy: bool = False
    tree: bool = False
    committed: bool = False
    candidates: Mapping[str, int] = field(default_factory=dict)
    repeats: Mapping[str, int] = field(default_factory=dict)
    critic: bool | None = None
    trains: bool = True

    @property
    def everyone(self) -> list[AgentPlan | ApiPlan]:
        """Plans of all agents, API agents last."""
        return [*self.agents, *self.api]

    @classmethod
    def of(cls, config: RunConfig, placement: Placement) -> RunPlan:
        """Return the plan of a run without checking that its keys fit together.

        Args:
            config: configuration of the run.
            placement: placement of its agents.

        Raises ConfigError for invalid own values of an agent or a policy, for devices that do not
        fit the worker groups, for `rollout.tree.k_per_agent` or `rollout.repeat_calls` of an agent
        that is not in the team, and as `policy_rows` does.
        """
        candidates = candidates_of(config.agent, config.rollout)
        agents = tuple(
            plan_agent(row, config.algorithm, config.data, candidates.get(row.agent_id))
            for row in placement.agents
        )
        judge = placement.reward_model
        reward_model = None if judge is None else plan_agent(judge, config.algorithm, config.data, None)
        rows = [*agents, *([] if reward_model is None else [reward_model])]
        policies = plan_policies(
            config.data,
            config.async_training,
            config.algorithm.use_kl_in_reward,
            [agent for agent in agents if not agent.frozen],
        )
        tree = config.rollout.sampling == "tree"
        trains = not config.trainer.val_only
        speakers = {row.agent_id: row for row in agents}
        if config.agent.role_policies:
            from verl.trainer.plan.role_policies import policy_rows  # of this key alone

            speakers = policy_rows(config.agent, agents, trains)
        return cls(
            agents=agents,
            groups=plan_groups(config.trainer, config.rollout, config.critic, placement, rows),
            api=tuple(plan_api_agent(row, config.data) for row in placement.api),
            reward_model=reward_model,
            policies=policies,
            speakers=speakers,
            on_policy=config.async_training.fresh and all(p.updates == 1 for p in policies.values()),
            tree=tree,
            committed=tree and config.rollout.tree.returns == "committed",
            candidates=candidates,
            repeats=_per_agent(config.agent, "rollout.repeat_calls", config.rollout.repeat_calls),
            critic=config.critic.enable,
            trains=trains,
        )

    def agent(self, agent_id: str) -> AgentPlan:
        """Return the plan of one agent."""
        return next(agent for agent in self.agents if agent.agent_id == agent_id)

    @property
    def trained(self) -> list[AgentPlan]:
        """Plans of the trained agents."""
        return [agent for agent in self.agents if not agent.frozen]

    @property
    def references(self) -> list[str]:
        """Policies that a KL divergence compares with a reference; an evaluation has none."""
        return [policy for policy, plan in self.policies.items() if self.trains and plan.reference]

    @cached_property
    def needs_critic(self) -> bool:
        """Whether training needs critics."""
        return self.critic if self.critic is not None else any(agent.needs_values for agent in self.trained)

    @cached_property
    def critics(self) -> Mapping[str, tuple[str, ...]]:
        """Agents whose rows get values, by worker group; a group without such agents has no critic."""
        if self.critic is False or not self.trains:
            return {}
        agents: dict[str, tuple[str, ...]] = {}
        for agent in self.trained:
            if self.critic or agent.needs_values:
                agents[agent.wg_id] = (*agents.get(agent.wg_id, ()), agent.agent_id)
        return agents

    def to_json(self) -> dict[str, Any]:
        """Return the plan in JSON types, as a checkpoint contains it beside the configuration."""
        api = [
            {
                "agent_id": agent.agent_id,
                "model": agent.api.model,
                "sampling": asdict(agent.sampling),
                "val_sampling": asdict(agent.val_sampling),
            }
            for agent in self.api
        ]
        return {
            "agents": [agent.to_json() for agent in self.agents],
            "api": api,
            "tree": self.tree,
            "committed": self.committed,
            "critics": {wg_id: list(agents) for wg_id, agents in self.critics.items()},
        }

    def describe(self) -> list[str]:
        """Return lines on how the trained agents learn, for the start of a run; [] for an
        evaluation.
        """
        if not self.trains:
            return []
        with_values = {agent_id for agents in self.critics.values() for agent_id in agents}
        return [
            f"training of {agent.agent_id}: {agent.describe_credit()}"
            + (", with a critic" if agent.agent_id in with_values else "")
            for agent in self.trained
        ]

    @property
    def needs_sum_pi_squared(self) -> bool:
        """Whether an estimator in use needs `sum_pi_squared`, which the pass for old log-probs
        computes.
        """
        return any(agent.needs("sum_pi_squared") for agent in self.trained)

    @property
    def greedy_candidates(self) -> list[str]:
        """Agents whose candidates are compared with a greedy reply to the same call; with committed
        returns none are.
        """
        if not self.tree or self.committed:
            return []
        return [agent.agent_id for agent in self.trained if agent.needs("reward_baselines")]

    @property
    def greedy_episodes(self) -> bool:
        """Whether every task has a greedy episode, whose reward is the baseline of the others."""
        # in a tree of single steps the collector samples the baselines, see `greedy_candidates`
        single_steps = self.tree and not self.committed
        return not single_steps and any(agent.needs("reward_baselines") for agent in self.trained)


def candidates_of(agent: AgentConfig, rollout: CollectConfig) -> dict[str, int]:
    """Return `rollout.tree.k_per_agent` by agent name. Raises as `_per_agent`."""
    return _per_agent(agent, "rollout.tree.k_per_agent", rollout.tree.k_per_agent)


def _per_agent(agent: AgentConfig, key: str, numbers: Mapping[str, int]) -> dict[str, int]:
    """Return the numbers of a key by agent name. Raises PlacementError for an agent that is not in
    the team.
    """
    names = by_agent(key, numbers, agent.agent_ids)
    return {agent_id: numbers[name] for agent_id, name in names.items()}
