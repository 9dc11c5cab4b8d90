"""Allowed values of keys that are used in several modules. Imports no torch, so that values are
checked before it is imported.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any


class RegisteredNames:
    """Choices of a key whose values are names of components that register themselves.

    Whoever keeps the register sets `listed` (`verl.trainer.plan.registry`), so that this package
    does not import it. Until then there are no choices, and any name passes.

    Attributes:
        listed: function that returns the names.
    """

    def __init__(self) -> None:
        self.listed: Callable[[], Sequence[str]] = lambda: ()

    def __call__(self) -> Sequence[str]:
        """Return the names that are registered now."""
        return self.listed()


ESTIMATOR_NAMES = RegisteredNames()
POLICY_LOSS_NAMES = RegisteredNames()
ATTENTION_NAMES = ("auto", "sdpa", "eager", "flash_attention_2")
DTYPE_NAMES = ("fp32", "bf16")
SCHEDULES = ("constant", "linear", "cosine")
LOSS_AGG_MODES = (
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)
KL_ESTIMATORS = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
GAE_LEVELS = ("token", "turn")
GIGPO_MODES = ("mean_norm", "mean_std_norm")
RAE_ORDERS = ("subtract_first", "update_first")
IS_LEVELS = ("token", "sequence")
RS_MODES = (
    "token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_sum_k2", "seq_sum_k3", "seq_mean_k1",
    "seq_mean_k2", "seq_mean_k3",
    "seq_max_k2", "seq_max_k3",
)  # fmt: skip
# Values of algorithm.filter_groups.metric, with the column of each.
FILTER_METRICS = {
    "seq_reward": "reward",
    "mixed_reward": "mixed_reward",
    "team_reward": "team_reward",
    "local_reward": "local_reward",
}
# Shape of a new LoRA adapter, by the keys of `actor_rollout_ref.model` that a PEFT adapter to start
# from determines.
LORA_DEFAULTS: Mapping[str, Any] = {
    "lora_rank": 32,
    "lora_alpha": 32,
    "target_modules": "all-linear",
    "exclude_modules": None,
}

# Sections of keys; the keys that every estimator with groups reads; a condition of a common value.
ACTOR = "actor_rollout_ref.actor."
MODEL = "actor_rollout_ref."
ALGORITHM = "algorithm."
GROUP_KEYS = ("group_by", "singleton")
NO_OWN_VALUE = "an agent without its own value"
