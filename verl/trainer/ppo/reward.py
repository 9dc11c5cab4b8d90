"""Token-level rewards from rewards of samples, and the KL penalty."""

from __future__ import annotations

import numpy as np
import torch

from verl.protocol import DataProto
from verl.trainer.ppo.core_algos.aggregation import masked_mean
from verl.trainer.ppo.core_algos.kl import AdaptiveKLController, FixedKLController
from verl.trainer.ppo.core_algos.kl import kl_penalty as estimate_kl


def place_on_last_token(rewards: np.ndarray, response_mask: torch.Tensor) -> torch.Tensor:
    """Return token scores `[bsz, response_len]` with each row's reward on its last unmasked token;
    rows without one stay zero.
    """
    positions = torch.arange(1, response_mask.shape[1] + 1, device=response_mask.device)
    last = (response_mask * positions).argmax(dim=1)
    scores = torch.zeros(response_mask.shape, dtype=torch.float32, device=response_mask.device)
    values = torch.as_tensor(np.asarray(rewards, dtype=np.float32), device=response_mask.device)
    scores[torch.arange(len(last)), last] = values * response_mask.any(dim=1)
    return scores


def apply_kl_penalty(
    data: DataProto, kl_ctrl: FixedKLController | AdaptiveKLController, kl_penalty: str = "kl"
) -> tuple[DataProto, dict[str, float]]:
    """Set `token_level_rewards = token_level_scores - coefficient * KL(old || ref)` and update the
    KL controller.

    Needs `old_log_probs` and `ref_log_prob`. Return the batch and the metrics
    `actor/reward_kl_penalty` and `..._coeff`.
    """
    mask = data.batch["response_mask"]
    kld = estimate_kl(data.batch["old_log_probs"], data.batch["ref_log_prob"], kl_penalty) * mask
    coefficient = kl_ctrl.value
    data.batch["token_level_rewards"] = data.batch["token_level_scores"] - coefficient * kld
    real = mask.any(dim=1)
    per_row = (kld.sum(dim=1) / mask.sum(dim=1).clamp(min=1))[real]
    current = per_row.mean().item() if len(per_row) else masked_mean(kld, mask).item()
    kl_ctrl.update(current_kl=current, n_steps=int(real.sum().item()))
    return data, {"actor/reward_kl_penalty": current, "actor/reward_kl_penalty_coeff": coefficient}
