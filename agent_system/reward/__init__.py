"""From rewards of an environment to the reward of a sample, before a batch exists."""

from agent_system.reward.assign import assign_rewards
from agent_system.reward.mixing import mix
from agent_system.reward.settings import OverlongBuffer, PropagationSettings, RewardSettings

__all__ = ["OverlongBuffer", "PropagationSettings", "RewardSettings", "assign_rewards", "mix"]
