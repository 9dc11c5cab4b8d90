"""`agent.role_policies`: an evaluation in which agents use policies that were trained for other agents.

The swap test of AT-GRPO (arXiv 2510.11062): a team with one policy per role is evaluated with the policies
exchanged. The placement is that of training, so the run's checkpoint is read unchanged. An agent keeps its
prompts, projection, rewards and metrics; the policy determines weights, tokenizer and the values of its own
agent under `actor_rollout_ref`: sampling, and lengths in tokens of that tokenizer.
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

# Keys that an evaluation reads and in which agents on one policy may differ.
REQUEST_KEYS = ("prompt_length", "response_length", "stop", "val_kwargs")
LONGEST_NAME = 160


def policy_rows(config: RunConfig, placement: Placement) -> dict[str, AgentPlacement]:
    """Return agent -> the row of the placement whose policy generates its replies: its own, unless
    `agent.role_policies` names another.

    Raises ConfigError in a training run, for unknown agents or policies (all in one message), an agent named
    twice, a team with one policy, a policy whose own agents differ in `REQUEST_KEYS`, or a mapping that swaps
    nothing.
    """
    own = {row.agent_id: row for row in placement.agents}
    given = config.agent.role_policies
    if not given:
        return own
    shown = _shown(given)
    if not config.trainer.val_only:
        raise ConfigError(
            f"{shown} is for evaluation only; set trainer.val_only=true, or leave it out: in training, "
            "replies of an agent would train the policy of another agent, and the checkpoint would not match "
            "its placement"
        )
    if len({row.policy_id for row in placement.agents}) < 2:
        sharing = (
            "; it needs a team trained with agent.model_sharing=false" if config.agent.model_sharing else ""
        )
        raise ConfigError(
            f"{shown}: nothing to swap, {list(own)} have one policy, "
            f"'{placement.agents[0].policy_id}'{sharing}"
        )
    chosen = _policies_by_agent(given, own, shown)
    rows = {
        agent_id: _row(own[agent_id], chosen.get(agent_id, row.policy_id), placement, shown)
        for agent_id, row in own.items()
    }
    if not _swapped(rows, placement):
        raise ConfigError(
            f"{shown} gives every agent its own policy and swaps nothing; leave it out, or name other "
            "policies"
        )
    return rows


def output_dir(config: RunConfig, placement: Placement, run_dir: Path, checkpoint: Path | None) -> Path:
    """Return the output folder: `run_dir`, or with swapped roles `run_dir/swapped/<agent>-<policy>+...`, so
    that no file is overwritten.

    With swapped roles the checkpoint is written to `config`, which is saved in that folder. Raises
    ConfigError if there is no checkpoint and the exchanged policies are the same model.
    """
    rows = policy_rows(config, placement)
    swapped = _swapped(rows, placement)
    if not swapped:
        return run_dir
    if checkpoint is not None:
        config.trainer.resume_mode, config.trainer.resume_from_path = "resume_path", str(checkpoint)
    elif all(_same_model_and_sampling(rows[agent_id], placement.agent(agent_id)) for agent_id in swapped):
        model = rows[next(iter(swapped))].config.model.path
        raise ConfigError(
            f"{_shown(config.agent.role_policies)} swaps nothing with trainer.resume_mode=disable: without a "
            f"checkpoint the policies are the same model, {model!r}; evaluate a checkpoint, or set "
            "agent.model_ids"
        )
    name = "+".join(f"{slug(agent_id)}-{policy_id}" for agent_id, policy_id in swapped.items())
    short = name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}-{crc32(name.encode()):08x}"
    return run_dir / "swapped" / short


def _policies_by_agent(
    given: Mapping[str, str], own: Mapping[str, AgentPlacement], shown: str
) -> dict[str, str]:
    """Return agent -> policy, for agents given by name or slug."""
    names = {name: agent_id for agent_id in own for name in (agent_id, slug(agent_id))}
    policies = list(dict.fromkeys(row.policy_id for row in own.values()))
    no_agents = [f"no agent {name!r}{did_you_mean(name, own)}" for name in given if name not in names]
    no_policies = [
        f"no policy {name!r}{did_you_mean(name, policies)}" for name in given.values() if name not in policies
    ]
    if no_agents or no_policies:
        found = "; ".join(no_agents + no_policies)
        raise ConfigError(f"{shown}: {found}; agents are {list(own)}, policies are {policies}")
    chosen: dict[str, str] = {}
    for name, policy_id in given.items():
        if names[name] in chosen:
            raise ConfigError(
                f"{shown} names agent '{names[name]}' twice, by its name and by its slug; keep one"
            )
        chosen[names[name]] = policy_id
    return chosen


def _row(own: AgentPlacement, policy_id: str, placement: Placement, shown: str) -> AgentPlacement:
    """Return the agent's own row if the policy is its own, else the row of the policy's agents, whose
    `REQUEST_KEYS` must be equal.
    """
    if policy_id == own.policy_id:
        return own
    first, *others = [row for row in placement.agents if row.policy_id == policy_id]
    for other in others:
        mine = first.config.rollout
        theirs = other.config.rollout
        differing = [f"rollout.{key}" for key in REQUEST_KEYS if getattr(mine, key) != getattr(theirs, key)]
        if differing:
            raise ConfigError(
                f"{shown}: agents '{first.agent_id}' and '{other.agent_id}' of policy '{policy_id}' differ "
                f"in {differing}, so the values for '{own.agent_id}' are ambiguous; give them one value "
                "under agent.agent_specific_parameters"
            )
    return first


def _same_model_and_sampling(one: AgentPlacement, other: AgentPlacement) -> bool:
    """Return whether two agents have the same initial model and sampling; an adapter starts as its base
    model.
    """
    mine, theirs = (
        {f.name: getattr(row.config.model, f.name) for f in fields(TrainedModelConfig)}
        for row in (one, other)
    )
    return (mine, one.config.rollout) == (theirs, other.config.rollout)


def _swapped(rows: Mapping[str, AgentPlacement], placement: Placement) -> dict[str, str]:
    """Return agent -> policy for agents that do not use their own policy, in the order of the placement."""
    return {
        row.agent_id: rows[row.agent_id].policy_id
        for row in placement.agents
        if rows[row.agent_id].policy_id != row.policy_id
    }


def _shown(given: Mapping[str, str]) -> str:
    """Return the key and its value as on the command line."""
    return f"agent.role_policies={{{', '.join(f'{name}: {policy}' for name, policy in given.items())}}}"
