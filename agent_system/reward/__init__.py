"""From the rewards of an environment to the reward of each sample, before a batch is built."""

from agent_system.reward.assign import assign_rewards
from agent_system.reward.mixing import mix
from verl.trainer.config.reward import OverlongBufferConfig, PropagationConfig, RewardConfig

__all__ = ["OverlongBufferConfig", "PropagationConfig", "RewardConfig", "assign_rewards", "mix"]

# Prefix of the counts of a reward model among the metrics.
MODEL_COUNTS = "reward/model/"
