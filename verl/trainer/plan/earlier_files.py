"""Keys of configuration files that earlier versions wrote beside checkpoints, as keys of this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import reduce
from typing import Any

from verl.trainer.config.profiler import ALL
from verl.trainer.config.run import START_CHECKS
from verl.trainer.config.spec import ConfigError
from verl.trainer.plan.agent_overrides import WHERE
from verl.utils.names import slug

MODELS = "actor_rollout_ref"
ACTOR = f"{MODELS}.actor"
VALIDATION = f"{MODELS}.rollout.val_kwargs"


@dataclass(frozen=True)
class Merged:
    """Keys of one section that are one key now.

    Attributes:
        section: the section, such as `actor_rollout_ref.actor`.
        names: the keys in the files of then, the present one among them or not.
        name: the present key.
        value: returns the present value for those of `names`, None for one that the file lacks.
        booleans: those of `names` that are true or false.
    """

    section: str
    names: tuple[str, ...]
    name: str
    value: Callable[..., Any]
    booleans: tuple[str, ...] = ()


@dataclass(frozen=True)
class Switch:
    """A boolean whose meaning a value of another key has now.

    Attributes:
        name: full name of the boolean.
        number: full name of the key, which stood beside it.
        on: value of the key, as typed, for a switch that is on while the key is not set.
        off: value for a switch that is off.
        note: the value for off in words.
        words: values of the switch for on and off.
        is_verls: verl has the switch and the key, which it does not read without the switch, and the
            switch is off there unless it is set.
        is_upstreams: verl or Dr. MAS has the switch.
    """

    name: str
    number: str
    on: str
    off: Any
    note: str
    words: tuple[Any, Any] = (True, False)
    is_verls: bool = False
    is_upstreams: bool = True

    def merged(self) -> Merged:
        """Return the rule for files in which the switch stands in the section of the key."""
        section, _, leaf = self.number.rpartition(".")
        switch = self.name.rpartition(".")[2]

        def value(is_on: Any, number: Any) -> Any:
            return self.off if is_on == self.words[1] else number

        booleans = (switch,) if isinstance(self.words[0], bool) else ()
        return Merged(section, (switch, leaf), leaf, value, booleans)


NO_PENALTY = "0: no penalty"
BY_SIZE = "null: by ppo_mini_batch_size"
UPDATES = "use_adaptive_ppo_mini_batch_size"
SWITCHES = (
    Switch(
        f"{ACTOR}.use_invalid_action_penalty", f"{ACTOR}.invalid_action_penalty_coef", "0.1", 0.0, NO_PENALTY
    ),
    Switch(f"{ACTOR}.{UPDATES}", f"{ACTOR}.ppo_mini_update_num", "10", None, BY_SIZE),
    Switch(f"critic.{UPDATES}", "critic.ppo_mini_update_num", "10", None, BY_SIZE),
    Switch(
        f"{ACTOR}.use_kl_loss", f"{ACTOR}.kl_loss_coef", "0.001", 0.0, "0: it is not added", is_verls=True
    ),
    Switch(f"{VALIDATION}.do_sample", f"{VALIDATION}.temperature", "1.0", 0.0, "0: greedy"),
    Switch(
        "algorithm.kl_ctrl.type", "algorithm.kl_ctrl.target_kl", "0.1", None, "null: fixed; a number: adaptive",
        words=("adaptive", "fixed"), is_verls=True,
    ),
    Switch(
        "algorithm.use_kl_in_reward", "algorithm.kl_ctrl.kl_coef", "0.001", 0.0, "0: none is subtracted",
        is_verls=True,
    ),
    Switch(
        "algorithm.filter_groups.enable", "algorithm.filter_groups.metric", "seq_reward", None,
        "null: no groups are dropped", is_verls=True,
    ),
    *(
        Switch(
            f"{section}.{prefix[0]}use_dynamic_bsz", f"{section}.{prefix[1]}micro_batch_size_per_gpu",
            "8", None, "null: as many rows as the token budget takes", words=(False, True),
        )
        for section, prefix in (
            (ACTOR, ("", "ppo_")), ("critic", ("", "ppo_")),
            (f"{MODELS}.ref", ("log_prob_", "log_prob_")), (f"{MODELS}.rollout", ("log_prob_", "log_prob_")),
        )
    ),
    Switch(
        "reward.model.scope", "reward.model.agents", ".*", None, "null: the episode's answer",
        words=("call", "episode"), is_upstreams=False,
    ),
    Switch(
        "critic.view", "critic.joint_prompt_length", "1024", None, "null: the agent's own prompt",
        words=("joint", "own"), is_upstreams=False,
    ),
    Switch(
        "reward.overlong_buffer.enable", "reward.overlong_buffer.len", "0", None, "null: no penalty"
    ),
)  # fmt: skip


def _warm_up(steps: float | None, share: float | None) -> float:
    """Return the present `lr_warmup_steps`. Raises ConfigError for a share that has no spelling."""
    if steps is not None and steps >= 0:
        return steps
    if share is not None and share >= 1:
        raise ConfigError(
            f"lr_warmup_steps_ratio={share} is of an earlier version: write the number of steps as "
            "lr_warmup_steps, or use the version that wrote the file"
        )
    return share or 0.0


def _groups(by_agent: bool | None, fields: list[str] | None) -> list[str]:
    return fields if fields is not None else ["uid", "agent_id"] if by_agent else ["uid"]


def _steps(tool: str | None, joins: bool | None, steps: list[int] | None) -> list[Any] | None:
    if tool is None or steps is None:
        return None
    return runs_of_steps(steps) if joins else steps


def runs_of_steps(steps: Sequence[int]) -> list[Any]:
    """Return steps with those that follow each other in a list of their own, as in `[[2,3],5]`."""
    runs: list[list[int]] = []
    for step in sorted(set(steps)):
        if runs and runs[-1][-1] == step - 1:
            runs[-1].append(step)
        else:
            runs.append([step])
    return [run if len(run) > 1 else run[0] for run in runs]


def _checks(engines: bool | None, memory: bool | None) -> list[str]:
    checks = zip(START_CHECKS, (engines, memory), strict=True)
    return [name for name, is_made in checks if is_made is not False]


def _function(path: str | None, name: str | None) -> str | None:
    return path if path is None or name in (None, "compute_score") else f"{path}:{name}"


def _shape_by_one_number(reward: dict[Any, Any]) -> None:
    """Replace the two numbers of shapings by that of the shaping of the run."""
    gamma, threshold = (reward.pop(f"shaping_{name}", None) for name in ("gamma", "threshold"))
    shaping = str(reward.get("shaping"))
    if shaping == "binary" and threshold not in (None, 0.5):
        reward["shaping_by"] = threshold
    elif "discount" in shaping and gamma not in (None, 0.9):
        reward["shaping_by"] = gamma


def _join_pools(trainer: dict[Any, Any], rollout: dict[Any, Any]) -> None:
    """Move devices of engines, by worker group, beside those of the policies."""
    engines = rollout.pop("pool_sizes", None) or {}
    sizes = trainer.get("pool_sizes") or {}
    if engines and not sizes:
        raise ConfigError(
            f"rollout.pool_sizes={engines} is of an earlier version: write "
            "trainer.pool_sizes.<group>=[devices of the trainer,devices of the engines] of each "
            "worker group in the file, or use the version that wrote it"
        )
    if engines:
        trainer["pool_sizes"] = {group: [sizes.get(group, 0), count] for group, count in engines.items()}


def _ranks(enable: bool | None, all_ranks: bool | None, ranks: Any) -> Any:
    return (ALL if all_ranks else ranks or [0]) if enable else []


# Keys beside the switches that are one key now.
MERGED = (
    *(
        Merged(f"{section}.optim", ("lr_warmup_steps", "lr_warmup_steps_ratio"), "lr_warmup_steps", _warm_up)
        for section in (ACTOR, "critic")
    ),
    *(
        Merged(f"{section}.profiler", ("enable", "all_ranks", "ranks"), "ranks", _ranks)
        for section in (ACTOR, "critic")
    ),
    *(
        Merged(ACTOR, (ratio, name), name, lambda both, side: both if side is None else side)
        for ratio, name in (("ratio_below", "clip_ratio_low"), ("ratio_above", "clip_ratio_high"))
    ),
    Merged("algorithm", ("group_by_agent_id", "group_by"), "group_by", _groups),
    Merged("agent", ("team_command", "team"), "team", lambda command, team: command or team),
    Merged("global_profiler", ("tool", "profile_continuous_steps", "steps"), "steps", _steps),
    Merged("trainer", ("check_engines", "check_memory"), "checks", _checks),
    Merged("reward.custom_reward_function", ("path", "name"), "path", _function),
    Merged(
        "trainer",
        ("resume_mode", "resume_from_path"),
        "resume_mode",
        lambda mode, folder: folder if mode == "resume_path" else mode,
    ),
)
# Keys that are no keys any more: the value that each has now, which it had unless it was set, and
# what to do instead.
FORMER: dict[str, tuple[Any, str]] = {
    "trainer.balance_batch": (True, "ranks always get about the same number of tokens"),
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

    Raises ConfigError for former keys of agents that are no list with one value per agent.
    """
    saved = deepcopy(saved)
    agent = _section(saved, "agent")
    shared = agent.pop("model_sharing", None)
    if shared is not None and agent.get("specialization") is None:
        agent["specialization"] = "prompt" if shared else "full"
    algorithm = _section(saved, "algorithm")
    if "use_kl_in_reward" in algorithm:
        _section(algorithm, "kl_ctrl")["use_kl_in_reward"] = algorithm.pop("use_kl_in_reward")
    actor_of_agents = _section(_section(agent, "agent_specific_parameters"), "actor")
    for actor in (_section(_section(saved, MODELS), "actor"), actor_of_agents):
        if "clip_ratio" in actor:  # one for each side
            actor |= dict.fromkeys(("ratio_below", "ratio_above"), actor.pop("clip_ratio"))
    _shape_by_one_number(_section(saved, "reward"))
    _join_pools(_section(saved, "trainer"), _section(saved, "rollout"))
    for values in _section(algorithm, "per_agent").values():
        if isinstance(values, dict) and "group_by_agent_id" in values:
            values["group_by"] = _groups(values.pop("group_by_agent_id"), values.get("group_by"))
    for rule in (*(switch.merged() for switch in SWITCHES), *MERGED):
        _merge(rule, saved, agent)
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


def _merge(rule: Merged, saved: dict[Any, Any], agent: dict[Any, Any]) -> None:
    """Replace former keys of a section, and those of single agents, by values of the present key."""
    section = reduce(_section, rule.section.split("."), saved)
    models, _, path = rule.section.partition(".")
    per_agent = _section(agent, "agent_specific_parameters") if models == MODELS else {}
    of_agents = reduce(_section, path.split(".") if path else [], per_agent)
    if not any(name in part for name in rule.names if name != rule.name for part in (section, of_agents)):
        return
    is_set = any(name in section for name in rule.names)
    common = {name: section.pop(name, None) for name in rule.names}
    if is_set:
        section[rule.name] = rule.value(*common.values())
    if not any(name in of_agents for name in rule.names):
        return
    agent_ids = agent.get("agent_ids") or ()
    columns = [_values(of_agents, name, len(agent_ids), rule) for name in rule.names]
    values = [
        rule.value(
            *(mine if mine is not None else common[name] for name, mine in zip(rule.names, row, strict=True))
        )
        for row in zip(*columns, strict=True)
    ]
    untrained = {slug(agent_id) for key in ("frozen", "api") for agent_id in agent.get(key) or ()}
    reads = [not (rule.section.startswith(ACTOR) and slug(agent_id) in untrained) for agent_id in agent_ids]
    # null stands for the common value: for an agent whose value is null, that is null as well
    if any(value is None and reading for value, reading in zip(values, reads, strict=True)):
        section[rule.name] = None
    for name in rule.names:
        of_agents.pop(name, None)
    remaining = [
        value if reading and value != section.get(rule.name) else None
        for value, reading in zip(values, reads, strict=True)
    ]
    if remaining != [None] * len(agent_ids):
        of_agents[rule.name] = remaining


def _values(of_agents: dict[Any, Any], key: str, count: int, rule: Merged) -> Sequence[Any]:
    """Return the values of the agents for a key; None for each if it is not set."""
    values = of_agents.get(key, [None] * count)
    others = () if key in rule.booleans else (int, float, str, list)
    allowed = (bool, type(None), *others)
    if (
        not isinstance(values, list)
        or len(values) != count
        or not all(isinstance(value, allowed) for value in values)
    ):
        path = f"{WHERE}{rule.section.removeprefix(MODELS)}"
        raise ConfigError(
            f"{path}.{key}={values!r}: expected a list of {count} values, one for each agent; "
            f"the key of this version is {path}.{rule.name}"
        )
    return values


def _section(tree: dict[Any, Any], name: str) -> dict[Any, Any]:
    section = tree.get(name)
    return section if isinstance(section, dict) else {}
