"""KL penalty in the reward, with one coefficient per policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from verl.protocol import DataProto
from verl.trainer.config import AlgorithmConfig
from verl.trainer.ppo.core_algos.per_policy import aggregate_policies, policies

if TYPE_CHECKING:
    from verl.trainer.ppo.core_algos.kl import AdaptiveKLController, FixedKLController

COLUMNS = ("token_level_scores", "old_log_probs", "ref_log_prob", "response_mask")


class KLInReward:
    """One KL controller per policy; with an adaptive `algorithm.kl_ctrl` the coefficients differ.

    Args:
        config: source of `kl_ctrl` and `kl_penalty`.
    """

    def __init__(self, config: AlgorithmConfig) -> None:
        self._config = config
        self._controllers: dict[str, FixedKLController | AdaptiveKLController] = {}

    def state_dict(self) -> dict[str, float]:
        """Return the coefficient of every policy that has had a row."""
        return {policy: controller.value for policy, controller in self._controllers.items()}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore `state_dict`."""
        for policy, value in state.items():
            self._controller(policy).value = value

    def apply(self, batch: DataProto) -> dict[str, float]:
        """Set `token_level_rewards` from `token_level_scores`, per policy. A policy without an
        unmasked token keeps its coefficient.

        Returns:
            Metrics of `apply_kl_penalty`: means over policies, and those of each policy under
                `wg/<policy>/`.
        """
        from verl.trainer.ppo.core_algos.kl import apply_kl_penalty  # of use_kl_in_reward alone

        rewards = batch.batch["token_level_scores"].clone()
        per_policy = {}
        for policy, rows in policies(batch):
            policy_batch = DataProto.from_dict(tensors={name: batch.batch[name][rows] for name in COLUMNS})
            _, per_policy[policy] = apply_kl_penalty(
                policy_batch, self._controller(policy), self._config.kl_penalty
            )
            rewards[torch.as_tensor(rows)] = policy_batch.batch["token_level_rewards"]
        batch.batch["token_level_rewards"] = rewards
        return aggregate_policies(per_policy)

    def _controller(self, policy: str) -> FixedKLController | AdaptiveKLController:
        from verl.trainer.ppo.core_algos.kl import get_kl_controller  # of use_kl_in_reward alone

        return self._controllers.setdefault(policy, get_kl_controller(self._config.kl_ctrl))
