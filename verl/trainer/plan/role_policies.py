"""`agent.role_policies`: an evaluation in which agents use policies that were trained for other agents.

The swap test of AT-GRPO (arXiv 2510.11062): a team with one policy per role is evaluated with the policies
exchanged. The placement is that of training, so the run's checkpoint is read unchanged. An agent keeps its
prompts, projection, rewards and metrics; the policy determines weights, tokenizer and the values of its own
agent under `actor_rollout_ref`: sampling, and lengths in tokens of that tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from zlib import crc32

from verl.trainer.config import AgentConfig, TrainedModelConfig, TrainerConfig
from verl.trainer.config.spec import ConfigError
from verl.trainer.plan.agents import AgentPlan
from verl.trainer.plan.placement import slug
from verl.utils.names import did_you_mean

# Keys that an evaluation reads and in which agents on one policy may differ.
REQUEST_KEYS = ("prompt_length", "response_length", "stop", "val_kwargs")
LONGEST_NAME = 160


def policy_rows(agent: AgentConfig, agents: Sequence[AgentPlan], trains: bool) -> dict[str, AgentPlan]:
    """Return agent -> the row whose policy generates its replies: the one that `agent.role_policies`
    names, or its own.

    Args:
        agent: keys under `agent`.
        agents: plans of the agents with a policy.
        trains: whether the run trains.

    Raises ConfigError in a training run, for unknown agents or policies (all in one message), an
    agent named twice, a team with one policy, a policy whose own agents differ in `REQUEST_KEYS`,
    or a mapping that swaps nothing.
    """
    own_rows = {row.agent_id: row for row in agents}
    role_policies = agent.role_policies
    setting = _setting(role_policies)
    if trains:
        raise ConfigError(
            f"{setting} is for evaluation only; set trainer.val_only=true, or leave it out: in "
            "training, replies of an agent would train the policy of another agent, and the "
            "checkpoint would not match its placement"
        )
    if len({row.policy_id for row in agents}) < 2:
        shared = agent.specialization == "prompt"
        sharing = "; it needs a team trained with agent.specialization=full" if shared else ""
        raise ConfigError(
            f"{setting}: nothing to swap, {list(own_rows)} have one policy, '{agents[0].policy_id}'{sharing}"
        )
    policy_by_agent = _policies_by_agent(role_policies, own_rows, setting)
    rows = {
        agent_id: _row(own_rows[agent_id], policy_by_agent.get(agent_id, row.policy_id), agents, setting)
        for agent_id, row in own_rows.items()
    }
    if not _swapped(rows, agents):
        raise ConfigError(
            f"{setting} gives every agent its own policy and swaps nothing; leave it out, or name "
            "other policies"
        )
    return rows


def output_dir(
    agent: AgentConfig,
    trainer: TrainerConfig,
    agents: Sequence[AgentPlan],
    rows: Mapping[str, AgentPlan],
    run_dir: Path,
    checkpoint: Path | None,
) -> Path:
    """Return the output folder: `run_dir`, or with swapped roles
    `run_dir/swapped/<agent>-<policy>+...`, so that no file is overwritten.

    `agents` are plans of the agents with a policy, `rows` what `policy_rows` returns for them. With
    swapped roles the checkpoint is written to `trainer`, which is saved in that folder. Raises
    ConfigError if there is no checkpoint and the exchanged policies are the same model.
    """
    swapped = _swapped(rows, agents)
    if not swapped:
        return run_dir
    if checkpoint is not None:
        trainer.resume_mode = str(checkpoint)
    elif all(_same_model_and_sampling(rows[a.agent_id], a) for a in agents if a.agent_id in swapped):
        model = rows[next(iter(swapped))].config.model.path
        raise ConfigError(
            f"{_setting(agent.role_policies)} swaps nothing with trainer.resume_mode=disable: "
            f"without a checkpoint the policies are the same model, {model!r}; evaluate a "
            "checkpoint, or set agent.model_ids"
        )
    name = "+".join(f"{slug(agent_id)}-{policy_id}" for agent_id, policy_id in swapped.items())
    short = name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}-{crc32(name.encode()):08x}"
    return run_dir / "swapped" / short


def _policies_by_agent(
    role_policies: Mapping[str, str], own_rows: Mapping[str, AgentPlan], setting: str
) -> dict[str, str]:
    """Return agent -> policy, for agents given by name or slug."""
    names = {name: agent_id for agent_id in own_rows for name in (agent_id, slug(agent_id))}
    policies = list(dict.fromkeys(row.policy_id for row in own_rows.values()))
    no_agents = [
        f"no agent {name!r}{did_you_mean(name, own_rows)}" for name in role_policies if name not in names
    ]
    no_policies = [
        f"no policy {name!r}{did_you_mean(name, policies)}"
        for name in role_policies.values()
        if name not in policies
    ]
    if no_agents or no_policies:
        problems = "; ".join(no_agents + no_policies)
        raise ConfigError(f"{setting}: {problems}; agents are {list(own_rows)}, policies are {policies}")
    policy_by_agent: dict[str, str] = {}
    for name, policy_id in role_policies.items():
        if names[name] in policy_by_agent:
            raise ConfigError(
                f"{setting} names agent '{names[name]}' twice, by its name and by its slug; keep one"
            )
        policy_by_agent[names[name]] = policy_id
    return policy_by_agent


def _row(own_row: AgentPlan, policy_id: str, agents: Sequence[AgentPlan], setting: str) -> AgentPlan:
    """Return the agent's own row if the policy is its own, else the row of the policy's agents,
    whose `REQUEST_KEYS` must be equal.
    """
    if policy_id == own_row.policy_id:
        return own_row
    first, *others = [row for row in agents if row.policy_id == policy_id]
    for other in others:
        mine = first.config.rollout
        theirs = other.config.rollout
        differing = [f"rollout.{key}" for key in REQUEST_KEYS if getattr(mine, key) != getattr(theirs, key)]
        if differing:
            raise ConfigError(
                f"{setting}: agents '{first.agent_id}' and '{other.agent_id}' of policy "
                f"'{policy_id}' differ in {differing}, so the values for '{own_row.agent_id}' are "
                "ambiguous; give them one value under agent.agent_specific_parameters"
            )
    return first


def _same_model_and_sampling(one: AgentPlan, other: AgentPlan) -> bool:
    """Return whether two agents have the same initial model and sampling; an adapter starts as its
    base model.
    """
    mine, theirs = (
        {f.name: getattr(row.config.model, f.name) for f in fields(TrainedModelConfig)}
        for row in (one, other)
    )
    return (mine, one.config.rollout) == (theirs, other.config.rollout)


def _swapped(rows: Mapping[str, AgentPlan], agents: Sequence[AgentPlan]) -> dict[str, str]:
    """Return agent -> policy for agents that do not use their own policy, in the order of the
    placement.
    """
    return {
        row.agent_id: rows[row.agent_id].policy_id
        for row in agents
        if rows[row.agent_id].policy_id != row.policy_id
    }


def _setting(role_policies: Mapping[str, str]) -> str:
    """Return the key and its value as on the command line."""
    return (
        f"agent.role_policies={{{', '.join(f'{name}: {policy}' for name, policy in role_policies.items())}}}"
    )
