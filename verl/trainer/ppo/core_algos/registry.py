"""Names of advantage estimators and policy losses, and how a user adds one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import Enum, StrEnum
from typing import Any, TypeVar

Fn = TypeVar("Fn", bound=Callable[..., Any])

ADV_ESTIMATOR_REGISTRY: dict[str, Callable[..., Any]] = {}
POLICY_LOSS_REGISTRY: dict[str, Callable[..., Any]] = {}
CHECKS_REWARDS: set[str] = set()


class AdvantageEstimator(StrEnum):
    """Built-in advantage estimators; a user's own needs only a name given to `register_adv_est`."""

    GAE = "gae"
    GDPO = "gdpo"
    GIGPO = "gigpo"
    GPG = "gpg"
    GRPO = "grpo"
    GRPO_PASSK = "grpo_passk"
    GRPO_VECTORIZED = "grpo_vectorized"
    M_GRPO = "m_grpo"
    OPO = "opo"
    OPTIMAL_TOKEN_BASELINE = "optimal_token_baseline"
    RAE = "rae"
    REINFORCE_PLUS_PLUS = "reinforce_plus_plus"
    REINFORCE_PLUS_PLUS_BASELINE = "reinforce_plus_plus_baseline"
    REMAX = "remax"
    RLOO = "rloo"
    RLOO_VECTORIZED = "rloo_vectorized"
    TIR_OPTIMAL_TOKEN_BASELINE = "tir_optimal_token_baseline"


def _name(name_or_enum: str | Enum) -> str:
    return str(name_or_enum.value) if isinstance(name_or_enum, Enum) else name_or_enum


def _register(registry: dict[str, Callable[..., Any]], kind: str, name_or_enum: str | Enum) -> Callable[[Fn], Fn]:
    def decorator(fn: Fn) -> Fn:
        name = _name(name_or_enum)
        known = registry.get(name)
        if known is not None and known != fn:
            raise ValueError(f"{kind} '{name}' is already registered as {known.__module__}.{known.__qualname__}; choose another name")
        registry[name] = fn
        return fn

    return decorator


def _lookup(registry: dict[str, Callable[..., Any]], kind: str, name_or_enum: str | Enum) -> Callable[..., Any]:
    name = _name(name_or_enum)
    if name not in registry:
        raise ValueError(f"unknown {kind} '{name}'; registered are {sorted(registry)}")
    return registry[name]


def register_adv_est(name_or_enum: str | Enum, *, checks_rewards: bool = False) -> Callable[[Fn], Fn]:
    """Register an advantage estimator under a name; raises ValueError when another function has it.

    Args:
        name_or_enum: its name in `algorithm.adv_estimator`.
        checks_rewards: it raises ValueError itself for rewards that are not finite, so nobody else has to read them for that.
    """

    def decorator(fn: Fn) -> Fn:
        registered = _register(ADV_ESTIMATOR_REGISTRY, "advantage estimator", name_or_enum)(fn)
        if checks_rewards:
            CHECKS_REWARDS.add(_name(name_or_enum))
        return registered

    return decorator


def get_adv_estimator_fn(name_or_enum: str | Enum) -> Callable[..., Any]:
    """The estimator registered under a name; raises ValueError listing the known ones."""
    return _lookup(ADV_ESTIMATOR_REGISTRY, "advantage estimator", name_or_enum)


def estimator_needs(name_or_enum: str | Enum, parameter: str) -> bool:
    """Whether an estimator has a parameter of that name without a default; raises ValueError for an unknown estimator."""
    found = inspect.signature(get_adv_estimator_fn(name_or_enum)).parameters.get(parameter)
    return found is not None and found.default is inspect.Parameter.empty


def register_policy_loss(name: str) -> Callable[[Fn], Fn]:
    """Register a policy loss under a name; raises ValueError when another function has it."""
    return _register(POLICY_LOSS_REGISTRY, "policy loss", name)


def get_policy_loss_fn(name: str) -> Callable[..., Any]:
    """The policy loss registered under a name; raises ValueError listing the known ones."""
    return _lookup(POLICY_LOSS_REGISTRY, "policy loss", name)
