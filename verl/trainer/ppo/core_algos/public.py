"""The public names of `core_algos`; importing this module imports every module of `estimators` and
`policy_losses`, which registers their functions.
"""

from importlib import import_module
from pkgutil import iter_modules

from verl.trainer.plan.registry import (
    ADV_ESTIMATOR_REGISTRY,
    POLICY_LOSS_REGISTRY,
    AdvantageEstimator,
    get_adv_estimator_fn,
    get_policy_loss_fn,
    register_adv_est,
    register_policy_loss,
)
from verl.trainer.ppo.core_algos import estimators, policy_losses
from verl.trainer.ppo.core_algos.aggregation import agg_loss, compute_entropy_loss, masked_mean, masked_sum
from verl.trainer.ppo.core_algos.estimators.anchors import build_step_group
from verl.trainer.ppo.core_algos.estimators.gae import compute_gae_advantage_return
from verl.trainer.ppo.core_algos.estimators.gdpo import compute_gdpo_outcome_advantage
from verl.trainer.ppo.core_algos.estimators.gigpo import (
    compute_gigpo_outcome_advantage,
    compute_step_discounted_returns,
)
from verl.trainer.ppo.core_algos.estimators.gpg import compute_gpg_outcome_advantage
from verl.trainer.ppo.core_algos.estimators.grpo import (
    compute_grpo_outcome_advantage,
    compute_grpo_vectorized_outcome_advantage,
)
from verl.trainer.ppo.core_algos.estimators.grpo_passk import compute_grpo_passk_outcome_advantage
from verl.trainer.ppo.core_algos.estimators.m_grpo import compute_m_grpo_outcome_advantage
from verl.trainer.ppo.core_algos.estimators.opo import compute_opo_outcome_advantage
from verl.trainer.ppo.core_algos.estimators.rae import compute_rae_outcome_advantage
from verl.trainer.ppo.core_algos.estimators.reinforce_plus_plus import (
    compute_reinforce_plus_plus_baseline_outcome_advantage,
    compute_reinforce_plus_plus_outcome_advantage,
)
from verl.trainer.ppo.core_algos.estimators.remax import compute_remax_outcome_advantage
from verl.trainer.ppo.core_algos.estimators.rloo import (
    compute_rloo_outcome_advantage,
    compute_rloo_vectorized_outcome_advantage,
)
from verl.trainer.ppo.core_algos.estimators.token_baseline import (
    compute_multi_turn_optimal_token_baseline_advantage,
    compute_optimal_token_baseline_advantage,
)
from verl.trainer.ppo.core_algos.grouping import GroupStats, group_index, group_stats
from verl.trainer.ppo.core_algos.kl import (
    AdaptiveKLController,
    FixedKLController,
    compute_rewards,
    get_kl_controller,
    kl_penalty,
    kl_penalty_forward,
)
from verl.trainer.ppo.core_algos.policy_losses.bypass_mode import (
    compute_policy_loss_bypass_mode,
    compute_policy_loss_reinforce,
)
from verl.trainer.ppo.core_algos.policy_losses.cispo import compute_policy_loss_cispo
from verl.trainer.ppo.core_algos.policy_losses.clip_cov import compute_policy_loss_clip_cov
from verl.trainer.ppo.core_algos.policy_losses.dppo import (
    compute_policy_loss_dppo_kl,
    compute_policy_loss_dppo_tv,
)
from verl.trainer.ppo.core_algos.policy_losses.dro import compute_policy_loss_dro
from verl.trainer.ppo.core_algos.policy_losses.geo_mean import compute_policy_loss_geo_mean
from verl.trainer.ppo.core_algos.policy_losses.gpg import compute_policy_loss_gpg
from verl.trainer.ppo.core_algos.policy_losses.gspo import compute_policy_loss_gspo
from verl.trainer.ppo.core_algos.policy_losses.kl_cov import compute_policy_loss_kl_cov
from verl.trainer.ppo.core_algos.policy_losses.preparation import (
    MiniBatch,
    Ranks,
    find_preparation,
    register_preparation,
)
from verl.trainer.ppo.core_algos.policy_losses.sapo import compute_policy_loss_sapo
from verl.trainer.ppo.core_algos.policy_losses.vanilla import compute_policy_loss_vanilla
from verl.trainer.ppo.core_algos.value import compute_value_loss

__all__ = [
    "ADV_ESTIMATOR_REGISTRY",
    "POLICY_LOSS_REGISTRY",
    "AdaptiveKLController",
    "AdvantageEstimator",
    "FixedKLController",
    "GroupStats",
    "MiniBatch",
    "Ranks",
    "agg_loss",
    "build_step_group",
    "compute_entropy_loss",
    "compute_gae_advantage_return",
    "compute_gdpo_outcome_advantage",
    "compute_gigpo_outcome_advantage",
    "compute_gpg_outcome_advantage",
    "compute_grpo_outcome_advantage",
    "compute_grpo_passk_outcome_advantage",
    "compute_grpo_vectorized_outcome_advantage",
    "compute_m_grpo_outcome_advantage",
    "compute_multi_turn_optimal_token_baseline_advantage",
    "compute_opo_outcome_advantage",
    "compute_optimal_token_baseline_advantage",
    "compute_policy_loss_bypass_mode",
    "compute_policy_loss_cispo",
    "compute_policy_loss_clip_cov",
    "compute_policy_loss_dppo_kl",
    "compute_policy_loss_dppo_tv",
    "compute_policy_loss_dro",
    "compute_policy_loss_geo_mean",
    "compute_policy_loss_gpg",
    "compute_policy_loss_gspo",
    "compute_policy_loss_kl_cov",
    "compute_policy_loss_reinforce",
    "compute_policy_loss_sapo",
    "compute_policy_loss_vanilla",
    "compute_rae_outcome_advantage",
    "compute_reinforce_plus_plus_baseline_outcome_advantage",
    "compute_reinforce_plus_plus_outcome_advantage",
    "compute_remax_outcome_advantage",
    "compute_rewards",
    "compute_rloo_outcome_advantage",
    "compute_rloo_vectorized_outcome_advantage",
    "compute_step_discounted_returns",
    "compute_value_loss",
    "find_preparation",
    "get_adv_estimator_fn",
    "get_kl_controller",
    "get_policy_loss_fn",
    "group_index",
    "group_stats",
    "kl_penalty",
    "kl_penalty_forward",
    "masked_mean",
    "masked_sum",
    "register_adv_est",
    "register_policy_loss",
    "register_preparation",
]

for _folder in (estimators, policy_losses):
    for _module in iter_modules(_folder.__path__):
        import_module(f"{_folder.__name__}.{_module.name}")
