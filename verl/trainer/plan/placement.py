"""Placement: the table agent -> policy -> worker group, built once from the config and checked
before any model is loaded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from verl.models.path import absolute_model_path
from verl.trainer.config import ActorRolloutRefConfig, AgentConfig, ApiConfig
from verl.trainer.config.names import LORA_DEFAULTS
from verl.trainer.config.spec import followers
from verl.trainer.plan.agent_overrides import COMMON, WHERE, PlacementError, config_of
from verl.trainer.plan.untrained_agents import api_agents, frozen_agents
from verl.utils.names import did_you_mean, slug, value_at

LEVELS = ("prompt", "lora", "full")
# Keys of `actor_rollout_ref.rollout` that are set per request, so that agents on one policy may
# differ in them.
PER_REQUEST = ("top_p", "top_k", "response_length", "prompt_length", "stop", "val_kwargs", "tool_samples")
REQUEST_KEYS = {("rollout", name) for name in PER_REQUEST}
# Keys that must be equal for all adapters of one base: they are trained in one model and sampled by
# one engine.
BASE_KEYS = (
    "model.path", "model.tokenizer_path", "model.trust_remote_code", "model.enable_gradient_checkpointing",
    "model.use_remove_padding",
    "model.attn_implementation", "model.use_fused_kernels", "actor.use_prefix_grouper", "actor.profiler",
    "actor.fsdp_config", "rollout.name",
    "rollout.max_num_seqs", "rollout.dtype",
    "rollout.free_cache_engine", "rollout.num_threads", "rollout.update_bucket_mb",
    "rollout.gpu_memory_utilization",
    "rollout.enforce_eager", "rollout.tensor_model_parallel_size", "rollout.max_num_batched_tokens",
    "rollout.enable_chunked_prefill", "rollout.enable_prefix_caching", "rollout.weight_transfer",
    "rollout.structured_outputs",
)  # fmt: skip
# A key that may be left to the run is compared by what it stands for then.
VALUE_WITH_DEFAULT = {"rollout.max_num_seqs": "rollout.slots"}


class Row:
    """Base class of rows: keys under `actor_rollout_ref`, of which the agent has its own values for
    `own_keys`.
    """

    own_keys: frozenset[str]

    def key(self, name: str) -> str:
        """Return the full name under which the agent's value of a key is set: its own key, or the
        common `actor_rollout_ref` key.
        """
        return f"{WHERE}.{name}" if name in self.own_keys else f"actor_rollout_ref.{name}"


@dataclass(frozen=True)
class AgentPlacement(Row):
    """One row of the table; `config` includes the agent's own values (of `own_keys`); `adapter` is
    None if the policy is a whole model.

    The policy of a frozen agent is not trained: an unchanged model, or the base model of other
    agents' adapters.
    """

    agent_id: str
    policy_id: str
    wg_id: str
    config: ActorRolloutRefConfig
    adapter: str | None = None
    frozen: bool = False
    own_keys: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ApiPlacement(Row):
    """Agent without a policy; only the sampling keys of `config` are read."""

    agent_id: str
    api: ApiConfig
    config: ActorRolloutRefConfig
    own_keys: frozenset[str] = frozenset()

    @property
    def policy_id(self) -> str:
        """Placeholder for a policy in trajectories; names of policies contain no colon."""
        return f"api:{self.api.model}"


@dataclass(frozen=True)
class WorkerGroupSpec:
    """One worker group: the model it holds and the agents it serves.

    Attributes:
        config: config of its policy; with adapters that of the first, whose keys of the base model
            are equal for all.
        adapters: config of every adapter on this base model, by policy, in the order of the table;
            empty if the model itself is trained.
        trained: false for a model all of whose agents are frozen: it is served without a trainer.
    """

    wg_id: str
    model_path: str
    agent_ids: tuple[str, ...]
    config: ActorRolloutRefConfig
    adapters: Mapping[str, ActorRolloutRefConfig] = field(default_factory=dict)
    trained: bool = True

    @property
    def policies(self) -> dict[str, ActorRolloutRefConfig]:
        """Configs of the trained policies, by `policy_id`."""
        return (dict(self.adapters) or {self.wg_id: self.config}) if self.trained else {}


@dataclass(frozen=True)
class Placement:
    """The whole table, in the order of `agent.agent_ids`: agents with a policy, their worker
    groups, and API agents.

    `reward_model` is the row of `reward.model`, which is no agent; the last worker group may be its
    own.
    """

    agents: tuple[AgentPlacement, ...]
    groups: tuple[WorkerGroupSpec, ...]
    api: tuple[ApiPlacement, ...] = ()
    reward_model: AgentPlacement | None = None

    def agent(self, agent_id: str) -> AgentPlacement:
        """Return the row of one agent."""
        return next(a for a in self.agents if a.agent_id == agent_id)

    @property
    def everyone(self) -> Sequence[AgentPlacement | ApiPlacement]:
        """Rows of all agents, API agents last."""
        return [*self.agents, *self.api]

    @property
    def trained(self) -> Sequence[AgentPlacement]:
        """Rows of the trained agents."""
        return [a for a in self.agents if not a.frozen]

    @property
    def policy_ids(self) -> list[str]:
        """Trained policies without repetition, in the order of the table."""
        return list(dict.fromkeys(a.policy_id for a in self.trained))

    def signature(self) -> list[dict[str, Any]]:
        """Return the part that a checkpoint must match: agent, policy and worker group of every
        row, and the shape of its adapter.
        """
        rows: list[dict[str, Any]] = [
            {"agent_id": a.agent_id, "policy_id": a.policy_id, "wg_id": a.wg_id} for a in self.agents
        ]
        for row, agent in zip(rows, self.agents, strict=True):
            if agent.adapter is not None:
                row["lora"] = {name: getattr(agent.config.model, name) for name in LORA_DEFAULTS}
            if agent.frozen:
                row["frozen"] = True
        return rows + [{"agent_id": a.agent_id, "policy_id": "api", "wg_id": "api"} for a in self.api]


def build_placement(agent: AgentConfig, base: ActorRolloutRefConfig) -> Placement:
    """Place every agent by its `agent.specialization`.

    Raises:
        PlacementError: no or repeated agents, names that are equal in metrics, lists of different
            length, a model that is not named or does not exist, an unknown override, a folder of an
            adapter that cannot be used or contradicts the keys of its shape, agents on one policy
            or one base with different training keys, or a frozen agent that shares a policy with a
            trained one.
    """
    names = list(agent.agent_ids)
    if not names:
        raise PlacementError("agent.agent_ids is empty; name at least one agent")
    if len(set(names)) < len(names):
        raise PlacementError(f"agent.agent_ids={names} names an agent twice; every agent needs its own name")
    _check_slugs(names)
    frozen = frozen_agents(agent)
    api = api_agents(agent)
    models = _model_paths(agent, base, api)
    levels = _levels(agent, api)
    agent_configs = [
        config_of(i, names, models[i], agent.agent_specific_parameters, base) for i in range(len(names))
    ]
    adapters = _adapters(agent, levels, models, frozen)
    here = [i for i, name in enumerate(names) if name not in api]
    keys = _group_keys([(names[i], models[i], levels[i]) for i in here], frozen)
    wg_ids = _worker_group_ids(keys, {a for a in adapters if a is not None})
    rows = tuple(
        _with_adapter_shape(
            AgentPlacement(
                names[i],
                adapters[i] or wg,
                wg,
                agent_configs[i][0],
                adapters[i],
                names[i] in frozen,
                agent_configs[i][1],
            )
        )
        for i, wg in zip(here, wg_ids, strict=True)
    )
    groups = tuple(_group(wg_id, [r for r in rows if r.wg_id == wg_id]) for wg_id in dict.fromkeys(wg_ids))
    return Placement(
        rows,
        groups,
        tuple(ApiPlacement(n, api[n], *o) for n, o in zip(names, agent_configs, strict=True) if n in api),
    )


def _group(wg_id: str, members: Sequence[AgentPlacement]) -> WorkerGroupSpec:
    """Return the worker group of these agents, whose shared keys must be equal."""
    by_policy: dict[str, list[AgentPlacement]] = {}
    for member in members:
        by_policy.setdefault(member.policy_id, []).append(member)
    for sharers in by_policy.values():
        _check_one_policy(sharers)
    first = members[0]
    for other in members[1:]:
        on_one_base = other.policy_id != first.policy_id or first.frozen
        if on_one_base and (differing := _differing(first.config, other.config, BASE_KEYS)):
            raise PlacementError(
                f"agents '{first.agent_id}' and '{other.agent_id}' share the base model "
                f"'{first.config.model.path}', but differ in {differing}; give them one value, or "
                "agent.specialization=full"
            )
    adapters = {policy: rows[0].config for policy, rows in by_policy.items() if rows[0].adapter is not None}
    trained = not all(member.frozen for member in members)
    return WorkerGroupSpec(
        wg_id,
        first.config.model.path or "",
        tuple(m.agent_id for m in members),
        first.config,
        adapters,
        trained,
    )


def _with_adapter_shape(row: AgentPlacement) -> AgentPlacement:
    """Return a row with the shape of its adapter in its config: that of the folder it starts from,
    else the keys or their defaults.
    """
    model = row.config.model
    if row.adapter is None:
        return row
    # of adapters alone
    from verl.models.adapter_folder import AdapterFolderError, adapter_shape, read_adapter_shape

    shape = adapter_shape(model)
    if model.lora_adapter_path is not None:
        folder_setting = f"{row.key('model.lora_adapter_path')}={model.lora_adapter_path}"
        try:
            shape = read_adapter_shape(model.lora_adapter_path)
        except AdapterFolderError as error:
            raise PlacementError(f"{folder_setting} (agent '{row.agent_id}'), {error}") from error
        for name, value in shape.items():
            model_value = getattr(model, name)
            if (
                model_value is not None
                and (sorted(model_value) if isinstance(model_value, list) else model_value) != value
            ):
                raise PlacementError(
                    f"{row.key(f'model.{name}')}={model_value} (agent '{row.agent_id}') "
                    f"contradicts the adapter of {folder_setting}, whose {name} is {value}; leave "
                    f"{name} out"
                )
    return replace(row, config=replace(row.config, model=replace(model, **shape)))


def _check_slugs(names: Sequence[str]) -> None:
    by_slug: dict[str, str] = {}
    for name in names:
        other = by_slug.setdefault(slug(name), name)
        if not slug(name) or other != name:
            problem = (
                f"agents '{other}' and '{name}' both become '{slug(name)}'"
                if slug(name)
                else f"agent '{name}' becomes an empty name"
            )
            raise PlacementError(
                f"agent.agent_ids={list(names)}: {problem} in metrics and folders, where only a-z "
                "and 0-9 count; give every agent a name that has at least one of these characters "
                "and differs from the others in them"
            )


def _model_paths(agent: AgentConfig, base: ActorRolloutRefConfig, api: Collection[str]) -> list[str]:
    """Return the model of each agent, folders as absolute paths; the entry of an API agent is not
    read.
    """
    names: list[str] = list(agent.agent_ids)
    models: list[Any] = list(agent.model_ids)  # None for an agent behind an API
    if not models:
        if not base.model.path and set(names) - set(api):
            raise PlacementError(
                f"no model: actor_rollout_ref.model.path is {base.model.path!r}; set it to a folder "
                "or a hub id, or agent.model_ids with one model per agent"
            )
        models = [base.model.path] * len(names)
    if len(models) != len(names):
        raise PlacementError(
            f"agent.model_ids has {len(models)} entries, agent.agent_ids has {len(names)}; they "
            "are parallel lists"
        )
    for i, name in enumerate(names):
        if name in api:
            if agent.model_ids and models[i] is not None:
                raise PlacementError(
                    f"agent.model_ids gives agent '{name}', which is behind an API, model "
                    f"{models[i]!r}; give it null"
                )
            continue
        model = models[i] = models[i] or base.model.path
        if not model:
            raise PlacementError(
                f"agent.model_ids={models}: no model for agent '{name}'; name one, or set "
                "actor_rollout_ref.model.path"
            )
        looks_local = model.startswith((".", "/", "~")) or model.count("/") > 1
        models[i] = absolute_model_path(model)
        if looks_local and not (Path(models[i]) / "config.json").is_file():
            where = "" if model.startswith(("/", "~")) else f"; looked in {Path.cwd()}"
            pattern = "; a * is not expanded" if "*" in model else ""
            raise PlacementError(
                f"model of agent '{name}': no Hugging Face model at {model!r} (config.json expected "
                f"there{where}{pattern})"
            )
    return models


def _levels(agent: AgentConfig, api: Collection[str]) -> list[str]:
    """Return the specialization of each agent: one of `LEVELS`, or `api`."""
    specialization = agent.specialization
    names = agent.agent_ids
    if not isinstance(specialization, (str, list, tuple)):
        raise PlacementError(
            f"agent.specialization={specialization!r}: expected one of {', '.join(LEVELS)}, or a "
            "list with one per agent"
        )
    levels = [specialization] * len(names) if isinstance(specialization, str) else list(specialization)
    if len(levels) != len(names):
        raise PlacementError(
            f"agent.specialization has {len(levels)} entries, agent.agent_ids has {len(names)}; "
            "give one value, or one per agent"
        )
    for i, name in enumerate(names):
        if name in api:
            if not isinstance(specialization, str) and levels[i] is not None:
                raise PlacementError(
                    f"agent.specialization={specialization}: agent '{name}' is behind an API and "
                    "has no policy; give it null"
                )
            levels[i] = "api"
        elif levels[i] not in LEVELS:
            raise PlacementError(
                f"agent.specialization={specialization}: {levels[i]!r} is not one of "
                f"{LEVELS}{did_you_mean(str(levels[i]), LEVELS)}"
            )
    if specialization in LEVELS and specialization != "full" and set(names) <= set(api):
        raise PlacementError(
            f"agent.specialization={specialization} has no effect: all agents are behind an API "
            "and have no policy; leave it out"
        )
    return levels


def _adapters(
    agent: AgentConfig, levels: Sequence[str], models: Sequence[str], frozen: Collection[str]
) -> list[str | None]:
    """Return the adapter of each agent: that of `agent.adapter_ids`, else its own; None without
    one, as for a frozen agent.
    """
    names = list(agent.agent_ids)
    adapter_ids = list(agent.adapter_ids) or [None] * len(agent.agent_ids)
    if len(adapter_ids) != len(names):
        raise PlacementError(
            f"agent.adapter_ids has {len(adapter_ids)} entries, agent.agent_ids has {len(names)}; "
            "they are parallel lists"
        )
    adapters: list[str | None] = []
    for name, level, adapter_id in zip(names, levels, adapter_ids, strict=True):
        if adapter_id is not None and level != "lora":
            raise PlacementError(
                f"agent.adapter_ids gives agent '{name}', whose specialization is {level}, adapter "
                f"'{adapter_id}'; make it lora, or give null"
            )
        if adapter_id is not None and name in frozen:
            raise PlacementError(
                f"agent.adapter_ids gives agent '{name}', which is in agent.frozen, adapter "
                f"'{adapter_id}': a frozen agent uses the base model without an adapter; give null"
            )
        if adapter_id is not None and not slug(adapter_id):
            raise PlacementError(
                f"agent.adapter_ids: {adapter_id!r} (agent '{name}') becomes an empty name; only "
                "a-z and 0-9 count"
            )
        adapters.append(slug(adapter_id or name) if level == "lora" and name not in frozen else None)
    for i, adapter in enumerate(adapters):
        for j in range(i):
            if adapter is None or adapter != adapters[j]:
                continue
            if adapter_ids[i] is None or adapter_ids[j] is None:
                raise PlacementError(
                    f"agent.adapter_ids={adapter_ids}: '{adapter}' is also the own adapter of "
                    f"agent '{names[i if adapter_ids[i] is None else j]}'; name it for both agents "
                    "to share it, or choose another name"
                )
            if models[i] != models[j]:
                raise PlacementError(
                    f"agents '{names[j]}' and '{names[i]}' claim adapter '{adapter}' on different "
                    f"models, '{models[j]}' and '{models[i]}'; an adapter belongs to one base: "
                    "choose another name"
                )
    return adapters


def _group_keys(team: Sequence[tuple[str, str, str]], frozen: Collection[str]) -> list[tuple[str, str, str]]:
    """Return (kind, sharer, model) of each agent; agents with equal triples are in one worker
    group.

    A frozen agent with level `lora` uses the base of adapters if one is trained on its model. Other
    frozen agents that are not `full` share one separate copy of their model.

    Args:
        team: name, model and level of each agent with a policy.
        frozen: names of frozen agents.
    """
    trained = {(level, model) for name, model, level in team if name not in frozen}
    kinds = []
    for name, model, level in team:
        if name in frozen and level == "prompt" and (level, model) in trained:
            other = next(n for n, m, lv in team if (lv, m) == (level, model) and n not in frozen)
            raise PlacementError(
                f"agent.frozen names agent '{name}', which shares its policy with the trained "
                f"agent '{other}': the policy would change. Give '{name}' agent.specialization "
                "full (a separate, unchanged copy of the model) or freeze both"
            )
        kinds.append(
            "frozen" if name in frozen and level != "full" and (level, model) not in trained else level
        )
    pairs = [(kind, model) for kind, (_, model, _) in zip(kinds, team, strict=True)]
    keys = []
    for (name, model, _), kind in zip(team, kinds, strict=True):
        alone = kind == "full" or (kind in ("prompt", "frozen") and pairs.count((kind, model)) == 1)
        keys.append(("full", name, model) if alone else (kind, model, model))
    return keys


def _worker_group_ids(keys: Sequence[tuple[str, str, str]], adapter_names: Collection[str]) -> list[str]:
    """Return a name for the worker group of each agent by its `_group_keys`; none is in
    `adapter_names`.
    """
    names: dict[tuple[str, str, str], str] = {}
    for key in keys:
        if key in names:
            continue
        kind, who, model = key
        group_name = slug(who if kind == "full" else Path(model).name) or "policy"
        group_name += f"_{kind}" if kind in ("lora", "frozen") else ""
        used = {*names.values(), *adapter_names}
        names[key] = (
            group_name
            if group_name not in used
            else next(f"{group_name}_{i}" for i in range(2, 10_000) if f"{group_name}_{i}" not in used)
        )
    return [names[key] for key in keys]


def _check_one_policy(members: Sequence[AgentPlacement]) -> None:
    first = members[0]
    if first.frozen:
        # frozen agents may differ in keys of a request, and `_group` compares keys of the base
        return
    sections = {name: getattr(first.config, name) for name in ("model", "actor", "ref", "rollout")}
    keys = [
        f"{name}.{f.name}"
        for name, section in sections.items()
        for f in fields(section)
        if (name, f.name) not in REQUEST_KEYS
    ]
    for other in members[1:]:
        both = (first.config, other.config)
        own_values = [key for key in keys if not all(_follows(config, key) for config in both)]
        if differing := _differing(first.config, other.config, own_values):
            if first.adapter is not None:
                raise PlacementError(
                    f"agents '{first.agent_id}' and '{other.agent_id}' claim adapter "
                    f"'{first.adapter}' but differ in {differing}; give them one value, or each "
                    "its own adapter in agent.adapter_ids"
                )
            raise PlacementError(
                f"agents '{first.agent_id}' and '{other.agent_id}' share policy "
                f"'{first.policy_id}' but differ in {differing}; give them one value, or set "
                "agent.specialization=full"
            )


def _follows(config: ActorRolloutRefConfig, key: str) -> bool:
    """Return whether a key has the value of the key that it follows."""
    leader = followers(ActorRolloutRefConfig).get(key)
    return leader is not None and value_at(config, key) == value_at(config, leader.removeprefix(COMMON))


def _differing(mine: ActorRolloutRefConfig, theirs: ActorRolloutRefConfig, keys: Iterable[str]) -> str:
    """Return the keys in which two configs differ, with values unless they are sections; empty if
    there are none.
    """
    differences = []
    for key in keys:
        one = value_at(mine, VALUE_WITH_DEFAULT.get(key, key))
        other = value_at(theirs, VALUE_WITH_DEFAULT.get(key, key))
        if one != other:
            differences.append(key if is_dataclass(one) else f"{key} ({one} and {other})")
    return ", ".join(differences)
