"""Detection of changed keys without an effect: each depends on other keys, and is an error instead
of being ignored.

A key declares the conditions that it depends on (`effect`, see `verl.trainer.config.spec`). A
condition is one of

- `key=value,value`, `key!=value`, `key>number`, or a key alone, which must be set; alternatives are
  separated by ` or `. A label in
  front (`a GPU: trainer.device=auto,cuda`) and a note in parentheses at the end are shown in
  messages only.
- one of `FACTS`, which depend on several keys.

A key is changed if its value is neither the default nor that of the key that it follows. It has an
effect if a key that follows it has one. An estimator or a loss that a plug-in registered may read
any key.

Keys of `actor_rollout_ref`, and those of `algorithm` that `algorithm.per_agent` may hold, are read
for each agent, with its values: the agent's own value has an effect if the conditions hold for this
agent, a common value if they hold for an agent that reads the key and has no own value (of
`actor_rollout_ref` also if every agent has one, which then replaces a default). An evaluation
(`trainer.val_only`) takes a run's command line: keys of training are judged as if it trained.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from verl.trainer.config import RunConfig
from verl.trainer.config.algorithm import READ as ESTIMATED
from verl.trainer.config.critic import CRITIC
from verl.trainer.config.gateway import STRUCTURED
from verl.trainer.config.model import ADAPTER, AGGREGATES, OLD_LOG_PROBS, SCHEDULED
from verl.trainer.config.model import READ as IN_THE_LOSS
from verl.trainer.config.names import ACTOR, ALGORITHM, GROUP_KEYS, MODEL, NO_OWN_VALUE
from verl.trainer.config.run import LANES, OLDER_WEIGHTS, SEVERAL_STEPS
from verl.trainer.config.spec import Key, as_typed, followers_by_leader, keys
from verl.trainer.plan.agent_overrides import leaves
from verl.trainer.plan.agents import PER_AGENT_KEYS, AgentPlan, ApiPlan, own_keys
from verl.trainer.plan.placement import AgentPlacement, ApiPlacement
from verl.trainer.plan.registry import ESTIMATORS, POLICY_LOSSES
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.credit.passes import computes_old_log_probs
from verl.utils.names import value_at

# Key that the comparison of the candidates of a call reads, whatever the estimator is.
COMPARISON = "algorithm.norm_adv_by_std_in_grpo"
# Keys whose conditions are checked for an agent that is not trained: served here, or behind an API.
# Which of its own keys are read at all is in `checks.py`.
CHECKED_OF_SERVED = ("model.", "rollout.")
CHECKED_OF_API = ("rollout.val_kwargs.",)


@dataclass(frozen=True)
class Scope:
    """Input of a condition.

    Attributes:
        config: values of the run; for `agent`, those of that agent.
        plan: plan of the run.
        agent: the agent; None: the run.
        own_keys: full names of the keys of which the agent has its own value.
    """

    config: RunConfig
    plan: RunPlan
    agent: AgentPlacement | ApiPlacement | None = None
    own_keys: frozenset[str] = frozenset()

    @classmethod
    def of(cls, run: Scope, agent: AgentPlan | ApiPlan) -> Scope:
        """Return the scope of an agent of the plan."""
        names = {f"{MODEL}{name}" for name in agent.own_keys}
        mine = replace(run.config, actor_rollout_ref=agent.config)
        if isinstance(agent, AgentPlan) and not agent.frozen:
            own_names = leaves(own_keys(run.config.algorithm, agent.agent_id))
            mine = replace(mine, algorithm=agent.algorithm)
            names |= {f"{ALGORITHM}{name}" for name in own_names}
        return cls(mine, run.plan, agent, frozenset(names))

    def reads(self, key: str) -> bool:
        """Return whether this agent reads a key: without training, those of serving or requests."""
        if self.agent is None or _learns(self.agent):
            return True
        checked = CHECKED_OF_SERVED if isinstance(self.agent, AgentPlacement) else CHECKED_OF_API
        return key.startswith(tuple(f"{MODEL}{name}" for name in checked)) and "log_prob_" not in key


# A key, the scope of the run or of an agent, and a condition of the key that does not hold there.
Unmet = tuple[Key, Scope, str]


def _learns(agent: AgentPlacement | ApiPlacement) -> bool:
    return isinstance(agent, AgentPlacement) and not agent.frozen


def _estimator_reads(key: str, scope: Scope) -> bool:
    """Return whether the estimator, or the comparison of candidates, reads `key`."""
    if key == COMPARISON and scope.plan.committed:
        return True
    name = scope.config.algorithm.adv_estimator
    key = key.removeprefix(ALGORITHM)
    return ESTIMATORS.traits(name).grouped if key in GROUP_KEYS else ESTIMATORS.reads(name, key)


def _loss_reads(key: str, scope: Scope) -> bool:
    return POLICY_LOSSES.reads(
        scope.config.actor_rollout_ref.actor.policy_loss.loss_mode, key.removeprefix(ACTOR)
    )


def _averages_by_mode(key: str, scope: Scope) -> bool:
    """Return whether the loss or an added term reads `actor.loss_agg_mode`, or the loss always
    aggregates that way.
    """
    actor = scope.config.actor_rollout_ref.actor
    beside = bool(actor.entropy_coeff) or actor.use_kl_loss
    return beside or POLICY_LOSSES.traits(actor.policy_loss.loss_mode).averages in ("", actor.loss_agg_mode)


def _has_lanes(key: str, scope: Scope) -> bool:
    from verl.trainer.ppo.asynchronous.lanes import lanes_of  # of async_training.max_lead alone

    return len(lanes_of(scope.config.algorithm, scope.config.async_training, scope.plan)) > 1


def _adapter_reads(key: str, scope: Scope) -> bool:
    """Return whether the adapter of the agent, or any of the run, reads `key`."""
    rows = scope.plan.agents if scope.agent is None else [scope.agent]
    return any(isinstance(row, AgentPlacement) and row.adapter is not None for row in rows)


def _sends_after_several_steps(key: str, scope: Scope) -> bool:
    """Return whether the weights of a policy that is no adapter may be sent after several steps."""
    paces = [policy.pace for policy in scope.plan.policies.values()]
    return any(pace.trigger > 1 and not pace.adapter for pace in paces)


FACTS: Mapping[str, Callable[[str, Scope], bool]] = {
    ESTIMATED: _estimator_reads,
    IN_THE_LOSS: _loss_reads,
    AGGREGATES: _averages_by_mode,
    CRITIC: lambda key, scope: scope.plan.needs_critic,
    OLD_LOG_PROBS: lambda key, scope: computes_old_log_probs(scope.config, scope.plan),
    ADAPTER: _adapter_reads,
    SCHEDULED: lambda key, scope: value_at(scope.config, key.rpartition(".")[0]).needs_length,
    LANES: _has_lanes,
    OLDER_WEIGHTS: lambda key, scope: not scope.config.async_training.fresh,
    SEVERAL_STEPS: _sends_after_several_steps,
    STRUCTURED: lambda key, scope: (
        scope.config.gateway.structured == "free"
        or any(row.config.rollout.structured_outputs for row in scope.plan.agents)
    ),
}


def holds(condition: str, key: str, scope: Scope) -> bool:
    """Return whether a condition of a key holds."""
    if condition in FACTS:
        return FACTS[condition](key, scope)
    expression = re.sub(r" \(.*\)$", "", condition.rpartition(": ")[2])
    return any(_compare(alternative, scope) for alternative in expression.split(" or "))


def _compare(expression: str, scope: Scope) -> bool:
    key, operator, operand = re.fullmatch(r"([\w.]+)(=|!=|>|$)(.*)", expression).groups()
    value = value_at(scope.config, key)
    if operator == "":
        return bool(value)
    if operator == ">":
        return bool(value > float(operand))
    return (as_typed(value) in operand.split(",")) == (operator == "=")


def check_effect(config: RunConfig, plan: RunPlan) -> None:
    """Check that every changed key has an effect, for the run and for each agent.

    Raises IneffectiveKeyError naming the key, its value and the conditions it needs.
    """
    run = Scope(config, plan)
    scopes = scopes_of(run)
    common = (refused for key in changed(run) for refused in unmet_by_all(key, run, scopes))
    for key, scope, condition in chain(common, *(_own_without_effect(run, scope) for scope in scopes)):
        from verl.trainer.plan.ineffective_keys import refusal  # of invalid settings alone

        is_own = key.name in scope.own_keys
        value = value_at(scope.config, key.name)
        raise refusal(key, value, scope.agent, is_own, config.algorithm.per_agent, condition)


def _own_without_effect(run: Scope, scope: Scope) -> Iterator[Unmet]:
    """Yield the conditions that do not hold of the own values of the agent of a scope."""
    for name, key in keys(RunConfig).items():
        if name not in scope.own_keys or not key.effect or not scope.reads(name):
            continue
        value = value_at(scope.config, name)
        unset = [key.default if name.startswith(MODEL) else value_at(run.config, name)]
        unset += [value_at(scope.config, key.like)] if key.like else []
        if value not in unset and not _followed(name, value, [scope]):
            yield from ((key, scope, condition) for condition in unmet(key, scope))


def scopes_of(run: Scope) -> list[Scope]:
    """Return the scopes of all agents of a run."""
    return [Scope.of(run, agent) for agent in run.plan.everyone]


def changed(run: Scope) -> list[Key]:
    """Return the keys with conditions that have neither the default nor the value they follow."""
    config = run.config
    return [
        key
        for name, key in keys(RunConfig).items()
        if key.effect
        and value_at(config, name) not in [key.default, *([value_at(config, key.like)] if key.like else [])]
    ]


def unmet_by_all(key: Key, run: Scope, scopes: Sequence[Scope]) -> Iterator[Unmet]:
    """Yield the conditions of a common value that do not hold, of a key that is read for each agent
    those of the agent that needs fewest; nothing if the value has an effect.
    """
    value = value_at(run.config, key.name)
    readers = [scope for scope in scopes if scope.reads(key.name)] if _is_per_agent(key.name) else [run]
    sharing = [scope for scope in readers if key.name not in scope.own_keys]
    # a critic follows the keys of the run
    if _followed(key.name, value, [run], among="critic.") or _followed(key.name, value, sharing):
        return
    # keys of the policies that every agent sets are defaults, as a script has them for all its users
    if readers and not sharing and key.name.startswith(ALGORITHM):
        yield key, run, NO_OWN_VALUE
    elif sharing:
        fewest = min(sharing, key=lambda scope: len(unmet(key, scope)))
        yield from ((key, fewest, condition) for condition in unmet(key, fewest))


def _is_per_agent(name: str) -> bool:
    """Return whether a key is read for each agent."""
    section, _, rest = name.partition(".")
    return f"{section}." == MODEL or (f"{section}." == ALGORITHM and rest.partition(".")[0] in PER_AGENT_KEYS)


def _followed(name: str, value: Any, scopes: Sequence[Scope], among: str = "") -> bool:
    """Return whether a key that begins with `among` and has an effect in a scope follows `name`."""
    return any(
        value_at(scope.config, other) == value and not unmet(keys(RunConfig)[other], scope)
        for other in followers_by_leader(RunConfig).get(name, ())
        for scope in scopes
        if other.startswith(among)
    )


def unmet(key: Key, scope: Scope) -> list[str]:
    """Return the conditions of a key that do not hold."""
    return [condition for condition in key.effect if not holds(condition, key.name, scope)]
