"""`agent.role_policies`: an evaluation in which agents speak with policies that were trained for other agents.

The swap test of AT-GRPO (arXiv 2510.11062): a team with one policy for each role is evaluated with the policies exchanged. The placement
table stays what was trained, so the run's checkpoint is read as it is. An agent keeps its prompts, its projection, its rewards and its
metrics; from the policy come the weights, the tokenizer and what its own agent has under `actor_rollout_ref`: sampling and lengths, which
are in tokens of that tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from zlib import crc32

from verl.trainer.config import RunConfig, TrainedModelConfig
from verl.trainer.config.spec import ConfigError
from verl.trainer.placement.table import AgentPlacement, Placement, slug
from verl.utils.names import did_you_mean

# What an evaluation reads of an agent's own keys and agents on one policy may differ in.
OF_A_REQUEST = ("prompt_length", "response_length", "stop", "val_kwargs")
LONGEST_NAME = 160


def speakers(config: RunConfig, placement: Placement) -> dict[str, AgentPlacement]:
    """Agent -> the row of the table whose policy it speaks with: its own, unless `agent.role_policies` names another.

    Raises ConfigError: in a training run, for agents or policies that do not exist (all of them in one message), an agent named twice,
    a team with one policy, a policy whose own agents differ in what would have to be taken over, or a mapping that swaps nothing.
    """
    own = {row.agent_id: row for row in placement.agents}
    given = config.agent.role_policies
    if not given:
        return own
    shown = _shown(given)
    if not config.trainer.val_only:
        raise ConfigError(
            f"{shown} is for an evaluation; set trainer.val_only=true, or leave it out: in training, what an agent says would train the "
            "policy of another agent, and the checkpoint would hold another team than its table says"
        )
    if len({row.policy_id for row in placement.agents}) < 2:
        sharing = "; it takes a team trained with agent.model_sharing=false" if config.agent.model_sharing else ""
        raise ConfigError(f"{shown}: nothing to swap, {list(own)} have one policy, '{placement.agents[0].policy_id}'{sharing}")
    chosen = _policies_by_agent(given, own, shown)
    rows = {agent_id: _row(own[agent_id], chosen.get(agent_id, row.policy_id), placement, shown) for agent_id, row in own.items()}
    if not _swapped(rows, placement):
        raise ConfigError(f"{shown} gives every agent its own policy and swaps nothing; leave it out, or name other policies")
    return rows


def set_apart(config: RunConfig, placement: Placement, run_dir: Path, checkpoint: Path | None) -> Path:
    """Where the run writes: `run_dir`, and with swapped roles `run_dir/swapped/<agent>-<policy>+...`, which leaves the run's files alone.

    With swapped roles the checkpoint is named in `config`, which is saved in that folder. Raises ConfigError when there is no checkpoint
    and the exchanged policies would be the same model.
    """
    rows = speakers(config, placement)
    swapped = _swapped(rows, placement)
    if not swapped:
        return run_dir
    if checkpoint is not None:
        config.trainer.resume_mode, config.trainer.resume_from_path = "resume_path", str(checkpoint)
    elif all(_speaks_like(rows[agent_id], placement.agent(agent_id)) for agent_id in swapped):
        model = rows[next(iter(swapped))].config.model.path
        raise ConfigError(
            f"{_shown(config.agent.role_policies)} swaps nothing with trainer.resume_mode=disable: without a checkpoint the policies are "
            f"the same model, {model!r}; evaluate a checkpoint, or set agent.model_ids"
        )
    name = "+".join(f"{slug(agent_id)}-{policy_id}" for agent_id, policy_id in swapped.items())
    short = name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}-{crc32(name.encode()):08x}"
    return run_dir / "swapped" / short


def _policies_by_agent(given: Mapping[str, str], own: Mapping[str, AgentPlacement], shown: str) -> dict[str, str]:
    """Agent -> policy, of agents that are named by their name or their slug."""
    names = {name: agent_id for agent_id in own for name in (agent_id, slug(agent_id))}
    policies = list(dict.fromkeys(row.policy_id for row in own.values()))
    no_agents = [f"no agent {name!r}{did_you_mean(name, own)}" for name in given if name not in names]
    no_policies = [f"no policy {name!r}{did_you_mean(name, policies)}" for name in given.values() if name not in policies]
    if no_agents or no_policies:
        found = "; ".join(no_agents + no_policies)
        raise ConfigError(f"{shown}: {found}; agents are {list(own)}, policies are {policies}")
    chosen: dict[str, str] = {}
    for name, policy_id in given.items():
        if names[name] in chosen:
            raise ConfigError(f"{shown} names agent '{names[name]}' twice, by its name and by its slug; keep one")
        chosen[names[name]] = policy_id
    return chosen


def _row(own: AgentPlacement, policy_id: str, placement: Placement, shown: str) -> AgentPlacement:
    """The row that an agent takes its policy from: its own when the policy is, else that of the policy's agents, which must agree."""
    if policy_id == own.policy_id:
        return own
    first, *others = [row for row in placement.agents if row.policy_id == policy_id]
    for other in others:
        mine, theirs = first.config.rollout, other.config.rollout
        differing = [f"rollout.{key}" for key in OF_A_REQUEST if getattr(mine, key) != getattr(theirs, key)]
        if differing:
            raise ConfigError(
                f"{shown}: agents '{first.agent_id}' and '{other.agent_id}' of policy '{policy_id}' differ in {differing}, so it is open "
                f"which of them '{own.agent_id}' would take; give them one value under agent.agent_specific_parameters"
            )
    return first


def _speaks_like(one: AgentPlacement, other: AgentPlacement) -> bool:
    """Whether two agents' models, as they are given, and their sampling are the same; an adapter starts as its base."""
    mine, theirs = ({f.name: getattr(row.config.model, f.name) for f in fields(TrainedModelConfig)} for row in (one, other))
    return (mine, one.config.rollout) == (theirs, other.config.rollout)


def _swapped(rows: Mapping[str, AgentPlacement], placement: Placement) -> dict[str, str]:
    """Agent -> policy, of the agents that do not speak with their own, in the order of the table."""
    return {row.agent_id: rows[row.agent_id].policy_id for row in placement.agents if rows[row.agent_id].policy_id != row.policy_id}


def _shown(given: Mapping[str, str]) -> str:
    """The key as it stands on the command line."""
    return f"agent.role_policies={{{', '.join(f'{name}: {policy}' for name, policy in given.items())}}}"
