"""Keys of configuration files that earlier versions wrote beside checkpoints, as keys of this one."""

from __future__ import annotations

from copy import deepcopy
from functools import reduce
from typing import Any

from verl.trainer.config.spec import ConfigError
from verl.trainer.plan.agent_overrides import WHERE
from verl.utils.names import slug

UPDATES = "use_adaptive_ppo_mini_batch_size"
# Switches of a policy: the key that has their meaning now, and its value for off.
SWITCHES = {
    "use_invalid_action_penalty": ("invalid_action_penalty_coef", 0.0),
    UPDATES: ("ppo_mini_update_num", None),
}
# Keys that are no keys any more: the value that each has now, which it had unless it was set, and
# what to do instead.
FORMER: dict[str, tuple[Any, str]] = {
    "reward.model.cache_size": (100_000, "100,000 scores are kept"),
    "reward.model.dtype": ("auto", "actor_rollout_ref.rollout.dtype is the reward model's as well"),
    "reward.model.micro_batch_size": (
        8,
        "8 rows, or actor_rollout_ref.rollout.max_num_seqs if that is less",
    ),
    "reward.propagation.theta_fall": (0.05, "a drop by a share of 0.05 is a fall"),
    "reward.propagation.theta_window": (3, "accuracy is compared with three validations"),
    "rollout.env_threads": (1024, "there are at most 1,024 threads"),
    "sandbox.backend": ("local", "sandbox.url alone sends programs to a SandboxFusion server"),
    "sandbox.level": ("auto", "the strongest level that works is used, sandbox.min_level at least"),
    "sandbox.limits.file_mb": (16, "sandbox.limits.disk_mb limits single files too"),
    "sandbox.max_timeouts": (2, "after two timeouts the other tests of a program are skipped"),
    "sandbox.request_timeout_s": (30.0, "a request may wait for the server for 30 s"),
}


def with_present_keys(saved: dict[Any, Any]) -> dict[Any, Any]:
    """Return the tree of a file with each switch that became a value of another key as that value,
    and without former keys that have the value of now. Raises ConfigError for another value of one.

    A switch that was off had left the number beside it without effect, so the number goes as well.
    Sections that are no sections stay, for the check of types.

    Raises ConfigError for switches of agents that are no list with one value per agent.
    """
    saved = deepcopy(saved)
    agent = _section(saved, "agent")
    shared = agent.pop("model_sharing", None)
    if shared is not None and agent.get("specialization") is None:
        agent["specialization"] = "prompt" if shared else "full"
    actor = _section(_section(saved, "actor_rollout_ref"), "actor")
    for switch in SWITCHES:
        _replace_switch(switch, actor, agent)
    critic = _section(saved, "critic")
    if critic.pop(UPDATES, True) is False:
        critic["ppo_mini_update_num"] = None
    sandbox = _section(saved, "sandbox")
    if sandbox.get("backend") == "local" and "url" in sandbox:
        sandbox["url"] = ""  # the address had no effect
    elif sandbox.get("url"):
        sandbox.pop("backend", None)
    model = _section(_section(saved, "reward"), "model")
    rollout = _section(_section(saved, "actor_rollout_ref"), "rollout")
    has_engine = model.get("kind") not in (None, "api") and model.get("agent") is None
    if "dtype" in model and model["dtype"] == rollout.get("dtype", "auto"):
        del model["dtype"]  # the reward model still has it
    elif has_engine and model.get("dtype") == "auto":
        raise ConfigError(_refusal("reward.model.dtype", "auto"))
    for name, (value, _) in FORMER.items():
        *sections, leaf = name.split(".")
        section = reduce(_section, sections, saved)
        if section.get(leaf, value) != value:
            raise ConfigError(_refusal(name, section[leaf]))
        section.pop(leaf, None)
    return saved


def _refusal(name: str, value: Any) -> str:
    return (
        f"{name}={value} is of an earlier version and no key any more: {FORMER[name][1]}; remove it "
        "from the file, or use the version that wrote it"
    )


def _replace_switch(switch: str, actor: dict[Any, Any], agent: dict[Any, Any]) -> None:
    """Replace a switch of the policies, and those of single agents, by values of the present key."""
    name, off = SWITCHES[switch]
    per_agent = _section(_section(agent, "agent_specific_parameters"), "actor")
    number = actor.get(name)
    is_on = actor.pop(switch, None)
    if is_on is False:
        actor[name] = off
    if switch not in per_agent and (is_on is None or name not in per_agent):
        return
    is_on = number not in (None, 0) if is_on is None else is_on
    untrained = {slug(agent_id) for key in ("frozen", "api") for agent_id in agent.get(key) or ()}
    agent_ids = agent.get("agent_ids") or ()
    switches = _values(per_agent, switch, len(agent_ids), name)
    numbers = _values(per_agent, name, len(agent_ids), name)
    effective = [
        (number if own_number is None else own_number)
        if (is_on if own_switch is None else own_switch)
        else off
        for own_switch, own_number in zip(switches, numbers, strict=True)
    ]
    learns = [slug(agent_id) not in untrained for agent_id in agent_ids]
    # null stands for the common value: for an agent whose value is null, that is null as well
    if any(value is None and trained for value, trained in zip(effective, learns, strict=True)):
        actor[name] = None
    per_agent[name] = [
        value if trained and value != actor.get(name) else None
        for value, trained in zip(effective, learns, strict=True)
    ]
    per_agent.pop(switch, None)
    if per_agent[name] == [None] * len(agent_ids):
        del per_agent[name]


def _values(per_agent: dict[Any, Any], key: str, count: int, present: str) -> list[Any]:
    """Return the values of the agents for a key; None for each if it is not set."""
    values = per_agent.get(key, [None] * count)
    allowed = (bool, int, float, type(None)) if key == present else (bool, type(None))
    if (
        not isinstance(values, list)
        or len(values) != count
        or not all(isinstance(v, allowed) for v in values)
    ):
        raise ConfigError(
            f"{WHERE}.actor.{key}={values!r}: expected a list of {count} values, one for each agent; "
            f"the key of this version is {WHERE}.actor.{present}"
        )
    return values


def _section(tree: dict[Any, Any], name: str) -> dict[Any, Any]:
    section = tree.get(name)
    return section if isinstance(section, dict) else {}
