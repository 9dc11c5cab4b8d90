"""What advantage estimators and policy losses are called and ask for, known without importing them: that takes torch, and seconds.

Once `core_algos` is imported its registries are asked, which also hold what users registered; until then the tables below.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

# Parameters of the built-in estimators that the checks ask for; `=` behind those that have a default.
ESTIMATORS: Mapping[str, str] = {
    "gae": "values",
    "gdpo": "batch= index traj_index=",
    "gigpo": "index traj_index=",
    "gpg": "index traj_index=",
    "grpo": "index traj_index=",
    "grpo_passk": "index traj_index=",
    "grpo_vectorized": "index traj_index=",
    "m_grpo": "index",
    "opo": "index traj_index=",
    "optimal_token_baseline": "index sum_pi_squared",
    "rae": "traj_index=",
    "reinforce_plus_plus": "",
    "reinforce_plus_plus_baseline": "index traj_index=",
    "remax": "reward_baselines",
    "rloo": "index traj_index=",
    "rloo_vectorized": "index traj_index=",
    "tir_optimal_token_baseline": "index sum_pi_squared",
}
POLICY_LOSSES = (
    "bypass_mode", "cispo", "clip_cov", "dppo", "dppo_kl", "dppo_tv", "dro", "geo_mean", "gmpo", "gpg", "gspo", "kl_cov", "sapo",
    "vanilla",
)  # fmt: skip


def estimator_names() -> list[str]:
    """Every estimator that can be chosen, sorted."""
    return sorted(_registered("ADV_ESTIMATOR_REGISTRY") or ESTIMATORS)


def policy_loss_names() -> list[str]:
    """Every policy loss that can be chosen, sorted."""
    return sorted(_registered("POLICY_LOSS_REGISTRY") or POLICY_LOSSES)


def is_built_in(name: str) -> bool:
    """Whether an estimator or a policy loss of that name is one of ours, whose keys are known."""
    found = [_registered(kind).get(name) for kind in ("ADV_ESTIMATOR_REGISTRY", "POLICY_LOSS_REGISTRY")]
    functions = [function for function in found if function is not None]
    return all(function.__module__.startswith("verl.") for function in functions) if functions else name in {*ESTIMATORS, *POLICY_LOSSES}


def estimator_takes(name: str | Enum, parameter: str) -> bool:
    """Whether an estimator has a parameter of that name; raises ValueError for an unknown estimator."""
    return parameter in _parameters(name)


def estimator_needs(name: str | Enum, parameter: str) -> bool:
    """Whether an estimator has a parameter of that name without a default; raises ValueError for an unknown estimator."""
    return _parameters(name).get(parameter, False)


def _parameters(name: str | Enum) -> dict[str, bool]:
    """Parameter -> whether it has no default."""
    name = str(name.value) if isinstance(name, Enum) else name
    if name not in estimator_names():
        raise ValueError(f"unknown advantage estimator '{name}'; registered are {estimator_names()}")
    functions = _registered("ADV_ESTIMATOR_REGISTRY")
    if functions:
        return {key: p.default is inspect.Parameter.empty for key, p in inspect.signature(functions[name]).parameters.items()}
    return {word.removesuffix("="): not word.endswith("=") for word in ESTIMATORS[name].split()}


def _registered(kind: str) -> Mapping[str, Callable[..., Any]]:
    """A registry of `core_algos`; empty until that is imported."""
    return getattr(sys.modules.get("verl.trainer.ppo.core_algos.registry"), kind, {})
