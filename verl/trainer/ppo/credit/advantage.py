"""Advantages of a whole team from token rewards: groups are formed here, the estimators are in
`core_algos`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

import numpy as np
import torch

from verl.protocol import DataProto
from verl.trainer.config.algorithm import AlgorithmConfig, EstimatorConfig
from verl.trainer.plan.agents import averages_trajectories, group_fields, split_by_settings
from verl.trainer.plan.registry import ESTIMATORS, AdvantageEstimator, plain_name
from verl.trainer.ppo.core_algos.estimators.outcome import real_rows
from verl.trainer.ppo.core_algos.grouping import group_index
from verl.trainer.ppo.credit.estimator_inputs import FIXES, EstimatorInputs
from verl.utils.names import own_key

# Arguments that verl passes to an estimator with `**kwargs`; all others are passed only to
# parameters of that name.
VERL_KEYWORDS = ("index", "reward_baselines", "config", "batch", "non_tensor_batch")


def group_keys(data: DataProto, fields: list[str], rows: np.ndarray | None = None) -> np.ndarray:
    """Return the group of each row, or of each of `rows`, as an integer, `[bsz]`; without fields all
    rows are one group.

    Raises ValueError if the samples lack a field.
    """
    missing = [f for f in fields if f not in data.non_tensor_batch]
    if missing:
        raise ValueError(
            f"algorithm.group_by names {missing}, which samples do not have; they have "
            f"{sorted(data.non_tensor_batch)}"
        )
    columns = [data.non_tensor_batch[f] for f in fields] or [np.zeros(len(data), dtype=np.int64)]
    return group_index(columns if rows is None else [column[rows] for column in columns])


def group_numbers(data: DataProto, config: EstimatorConfig) -> np.ndarray:
    """Return the group of each row as an integer, `[bsz]`, with the own settings of agents."""
    numbers = np.zeros(len(data), dtype=np.int64)
    next_number = 0
    for settings, rows in _parts(data, config):
        part = group_keys(data, group_fields(settings), rows)
        if rows is None:
            return part
        numbers[rows] = part + next_number
        next_number += int(part.max(initial=-1)) + 1
    return numbers


def compute_advantage(
    data: DataProto,
    adv_estimator: str,
    gamma: float = 1.0,
    lam: float = 1.0,
    num_repeat: int = 1,
    norm_adv_by_std_in_grpo: bool = True,
    config: EstimatorConfig = None,
    *,
    state: MutableMapping[str, Any] | None = None,
    seed: int = 0,
) -> DataProto:
    """Set `advantages` and `returns` `[bsz, response_len]` from `token_level_rewards`, each agent with its
    own estimator and settings.

    An estimator receives arguments by the names of its parameters (`EstimatorInputs`): `index` (the group),
    `policy_index`, `agent_index`, `turn_index`, `weights`, `values`, `anchor_obs`, `step_rewards`,
    `reward_baselines`, `gamma`, `lam`, `num_repeat`, `state`, `seed`, `config`, `batch`, `non_tensor_batch`,
    or any column (`traj_uid`); and `traj_index`, the episode, if trajectories are compared or the parameter
    has no default. It returns advantages and returns, and optionally weights of rows in the loss, `[bsz]`.
    With groups by `uid` alone, the rows of a trajectory are averaged first and share one advantage; with
    groups by `uid` and agent, every row is compared separately (Dr. MAS, arXiv 2602.08847).

    Args:
        data: `token_level_rewards`, `response_mask` (or `responses` and `attention_mask`, from which it is
            added) and the columns of the group key.
        adv_estimator: registered name; `config.per_agent` may set another one for an agent.
        gamma, lam, num_repeat: arguments of estimators.
        norm_adv_by_std_in_grpo: divide by the group's standard deviation.
        config: `AlgorithmConfig`, or verl's config (an OmegaConf, a dataclass), which has no group keys.
            Without group keys, or without a config, rows are grouped by `uid` and compared separately, as in
            verl.
        state: state of estimators between steps, in JSON types; changed in place.
        seed: seed of estimators that sample.

    Returns:
        `data`, also with `row_weights` `[bsz]` if weights of rows in the loss differ. With verl's
        `use_pf_ppo` and `gae` a new batch of rows sampled with replacement by `compute_pf_ppo_reweight_data`.

    Raises:
        ValueError: non-finite rewards, tensors that differ in shape or device, a group key that samples lack,
            or a missing argument of an estimator.
    """
    _complete(data)
    shape = data.batch["response_mask"].shape
    device = data.batch["response_mask"].device
    defaults = {
        "gamma": gamma,
        "lam": lam,
        "num_repeat": num_repeat,
        "norm_adv_by_std_in_grpo": norm_adv_by_std_in_grpo,
        "seed": seed,
    }
    memory: MutableMapping[str, Any] = {} if state is None else state
    advantages: Any = None
    returns: Any = None
    row_weights: Any = None
    for settings, rows in _parts(data, config):
        override_keys = _differing(("adv_estimator", *defaults), settings, config)
        name = plain_name(settings.adv_estimator if "adv_estimator" in override_keys else adv_estimator)
        arguments = defaults | {key: getattr(settings, key) for key in override_keys & defaults.keys()}
        part = _estimated(data, rows, name, settings, arguments, memory)
        if rows is None:
            advantages, returns, row_weights = part
            break
        if advantages is None:
            advantages, returns = (torch.zeros(shape, dtype=part[0].dtype, device=device) for _ in range(2))
        place = torch.as_tensor(rows, device=device)
        advantages[place], returns[place] = part[0], part[1]
        if part[2] is not None:
            row_weights = np.ones(len(data)) if row_weights is None else row_weights
            row_weights[rows] = part[2]
    data.batch["advantages"], data.batch["returns"] = advantages, returns
    if row_weights is not None:
        data.batch["row_weights"] = torch.as_tensor(row_weights, dtype=torch.float32, device=device)
    resamples = plain_name(adv_estimator) == AdvantageEstimator.GAE and own_key(config, "use_pf_ppo", False)
    return _resampled(data, config) if resamples else data


def _differing(keys: Iterable[str], settings: Any, config: Any) -> set[str]:
    """Return the keys of which an agent has a value of its own; none without a configuration."""
    if config is None:
        return set()
    return {key for key in keys if getattr(settings, key, None) != getattr(config, key, None)}


def _estimated(
    data: DataProto,
    rows: np.ndarray | None,
    name: str,
    settings: Any,
    arguments: dict[str, Any],
    memory: MutableMapping[str, Any],
) -> Any:
    """Return what an estimator makes of rows; what it remembers is kept in `memory`."""
    remembered = memory.get(name, {})
    estimator_arguments = arguments | {"config": settings, "state": remembered}
    if not ESTIMATORS.traits(name).checks_rewards:
        _check_finite(data)
    try:
        part = _estimate(name, _inputs(data, rows, estimator_arguments, settings, name))
    except ValueError:
        _check_finite(data)  # whose error names the agent
        raise
    if remembered:
        memory[name] = remembered
    return part


def _resampled(data: DataProto, config: EstimatorConfig) -> DataProto:
    # No configuration of this package has the key: only one of verl's comes here.
    from verl.compat.pf_ppo import compute_pf_ppo_reweight_data

    keys = own_key(config, "pf_ppo", None)
    return compute_pf_ppo_reweight_data(
        data, own_key(keys, "reweight_method", "pow"), own_key(keys, "weight_pow", 2.0)
    )


def _parts(data: DataProto, config: EstimatorConfig) -> list[tuple[Any, np.ndarray | None]]:
    """Return (settings, row indices) of each part; the row indices are None if one part has all
    rows.
    """
    if not own_key(config, "per_agent", None):
        return [(config, None)]
    if not isinstance(config, AlgorithmConfig):
        raise TypeError(f"algorithm.per_agent needs an AlgorithmConfig, got {type(config).__name__}")
    if "agent_id" not in data.non_tensor_batch:
        raise ValueError(
            "algorithm.per_agent needs the column agent_id, which samples lack; they have "
            f"{sorted(data.non_tensor_batch)}"
        )
    parts = split_by_settings(config, data.non_tensor_batch["agent_id"])
    return [(settings, rows if len(parts) > 1 else None) for settings, rows in parts]


def _inputs(
    data: DataProto, rows: np.ndarray | None, arguments: Mapping[str, Any], settings: Any, estimator: str
) -> EstimatorInputs:
    fields = group_fields(settings)
    has_group_keys = (
        own_key(settings, "group_by", None) is not None
        or own_key(settings, "group_by_agent_id", None) is not None
    )

    def index(inputs: EstimatorInputs) -> np.ndarray:
        if not has_group_keys and "uid" not in data.non_tensor_batch:
            # no groups are configured: only an estimator that needs them fails
            raise KeyError("uid")
        return group_keys(data, fields, inputs.rows)

    trajectories = averages_trajectories(settings, estimator)
    weigh = own_key(settings, "call_weighting", "sample") == "trajectory"
    return EstimatorInputs(data, rows, arguments, index, over_trajectories=trajectories, weigh_calls=weigh)


def _estimate(name: str, inputs: EstimatorInputs) -> tuple[torch.Tensor, torch.Tensor, np.ndarray | None]:
    """Return advantages, returns `[rows, response_len]` and, if weights of rows differ, weights
    `[rows]`.
    """
    result = ESTIMATORS.function(name)(**_arguments(name, inputs))
    advantages = result[0]
    returns = result[1]
    weights = result[2] if len(result) > 2 else inputs.call_weights()
    return advantages, returns, None if weights is None else np.asarray(weights, dtype=np.float64)


def _arguments(name: str, inputs: EstimatorInputs) -> dict[str, Any]:
    """Return the estimator's arguments that are available. Raises ValueError for a missing argument
    without a default.
    """
    required, any_keyword = ESTIMATORS.parameters(name)
    config = inputs.arguments["config"]
    if own_key(config, "statistics_over", "samples") == "trajectories" and "traj_index" not in required:
        raise ValueError(
            f"algorithm.statistics_over=trajectories: estimator '{name}' compares samples only; "
            "use auto or samples"
        )
    arguments = {}
    for key in dict.fromkeys((*required, *(VERL_KEYWORDS if any_keyword else ()))):
        needed = required.get(key, False)
        try:
            # An estimator with a traj_index without a default needs episodes, also if rows are not
            # averaged.
            arguments[key] = inputs.column("traj_uid") if key == "traj_index" and needed else inputs.get(key)
        except KeyError as missing:
            if needed:
                fix = FIXES.get(key, f"add {key} to the batch")
                raise ValueError(
                    f"advantage estimator '{name}' needs {key}, which the batch does not have: {fix}"
                ) from missing
    return arguments


def _complete(data: DataProto) -> None:
    """Add a missing `response_mask`. Raises ValueError if it cannot be computed, or does not match
    the rewards.
    """
    columns = set(data.batch.keys())
    if "response_mask" not in columns:
        if missing := {"responses", "attention_mask"} - columns:
            raise ValueError(
                f"the batch has no response_mask, nor {sorted(missing)} to compute it from; it has "
                f"{sorted(columns)}"
            )
        data.batch["response_mask"] = compute_response_mask(data)
    rewards = data.batch["token_level_rewards"]
    mask = data.batch["response_mask"]
    if rewards.shape != mask.shape or rewards.device != mask.device:
        raise ValueError(
            f"token_level_rewards {tuple(rewards.shape)} on {rewards.device} and response_mask "
            f"{tuple(mask.shape)} on {mask.device} differ in shape or device; both are [bsz, "
            "response_len]"
        )


def _check_finite(data: DataProto) -> None:
    """Raise ValueError for non-finite rewards, naming the first row and its agent."""
    rewards = data.batch["token_level_rewards"]
    mask = data.batch["response_mask"]
    if not torch.isfinite(rewards.sum()):
        bad = (real_rows(mask) & ~torch.isfinite(rewards).all(dim=1)).nonzero().squeeze(1)
        if len(bad):
            agents = data.non_tensor_batch.get("agent_id")
            whose = "" if agents is None else f" of agent '{agents[int(bad[0])]}'"
            raise ValueError(
                f"token_level_rewards: {len(bad)} of {len(mask)} rows are not finite (first: row "
                f"{int(bad[0])}{whose}); check the environment's reward"
            )


def compute_response_mask(data: DataProto) -> torch.Tensor:
    """Return the attention mask of the response part, `[bsz, response_len]`."""
    return data.batch["attention_mask"][:, -data.batch["responses"].size(1) :]
