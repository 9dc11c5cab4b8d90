"""Preparations: values over the whole mini-batch that a loss needs before the first micro-batch, so
that the cut into micro-batches does not change the gradient.

A loss that ranks, counts or normalises over tokens registers a preparation under its own name. It
receives this rank's rows of the mini-batch, with their log-probs under the weights before the
update, and returns columns; every micro-batch finds its rows of these columns in `config.prepared`
(None without an engine: a loss then treats its batch as the mini-batch).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from verl.trainer.plan.registry import POLICY_LOSSES
from verl.trainer.ppo.core_algos.policy_losses.common import LossConfig
from verl.utils.names import own_key


class Ranks:
    """Ranks that share a mini-batch; this class is the single-process case."""

    rank = 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of `values` over the ranks."""
        return values

    def gather(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Return the one-dimensional `values` of every rank; lengths may differ."""
        return [values]


@dataclass(frozen=True)
class MiniBatch:
    """This rank's rows of a mini-batch, all detached.

    Attributes:
        old_log_prob, log_prob, advantages, response_mask: `[bsz, response_len]`; `log_prob` is that
            of the weights before the update.
        row_weights: `[bsz]`, see `agg_loss`.
        ranks: ranks with the other rows.
    """

    old_log_prob: torch.Tensor
    log_prob: torch.Tensor
    advantages: torch.Tensor
    response_mask: torch.Tensor
    row_weights: torch.Tensor
    ranks: Ranks = field(default_factory=Ranks)

    @property
    def token_weights(self) -> torch.Tensor:
        """Weight of every token, `[bsz, response_len]` float64; 0 where masked."""
        return self.response_mask.bool() * self.row_weights.double().unsqueeze(-1)


Preparation = Callable[[MiniBatch, Any], dict[str, torch.Tensor]]


@dataclass(frozen=True)
class _Registered:
    prepare: Preparation
    when: Callable[[Any], bool]


PREPARATIONS: dict[str, _Registered] = {}


def register_preparation(
    loss: str, when: Callable[[Any], bool] = lambda config: True
) -> Callable[[Preparation], Preparation]:
    """Register the preparation of a policy loss.

    It maps a `MiniBatch` and the config to columns `[bsz, response_len]` or `[bsz]`. A column named
    `response_mask` replaces the mask: tokens masked there are in no loss, count or metric. The
    engine runs an additional forward pass for a preparation.

    Args:
        loss: name of `register_policy_loss`.
        when: function of the config that returns whether the preparation is needed.

    Raises:
        ValueError: the name already has another preparation.
    """

    def decorator(prepare: Preparation) -> Preparation:
        registration = PREPARATIONS.get(loss)
        if registration is not None and registration.prepare != prepare:
            raise ValueError(
                f"policy loss '{loss}' has a preparation already: "
                f"{registration.prepare.__module__}.{registration.prepare.__qualname__}"
            )
        PREPARATIONS[loss] = _Registered(prepare, when)
        return prepare

    return decorator


def find_preparation(loss: str, config: LossConfig | None) -> Preparation | None:
    """Return the preparation of a loss, None if it needs none with this config."""
    POLICY_LOSSES.load(loss)  # whose file registers it
    registered = PREPARATIONS.get(loss)
    return registered.prepare if registered is not None and registered.when(config) else None


def prepared_columns(
    loss: str,
    config: LossConfig | None,
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """Return the columns that the engine prepared for these rows; without an engine, those of the
    rows as a mini-batch.
    """
    prepared: dict[str, torch.Tensor] | None = own_key(config, "prepared", None)
    if prepared is not None:
        return prepared
    prepare = find_preparation(loss, config)
    if prepare is None:
        return {}
    row_weights = config.global_batch_info.get("row_weights")
    weights = (
        torch.ones(len(response_mask), device=response_mask.device) if row_weights is None else row_weights
    )
    with torch.no_grad():
        return prepare(MiniBatch(old_log_prob, log_prob.detach(), advantages, response_mask, weights), config)
