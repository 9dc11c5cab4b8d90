"""Collection of episodes: prompts within the length limit, one coroutine per episode, one batch per
step.
"""

from agent_system.record import EpisodeRecord, Sample
from agent_system.rollout.binding import AgentBinding
from agent_system.rollout.collector import Collector, CollectResult, EnvFactory
from agent_system.rollout.player import TooManyFailuresError
from agent_system.rollout.settings import CollectorSettings
from verl.trainer.config.run import TreeConfig

__all__ = [
    "AgentBinding",
    "CollectResult",
    "Collector",
    "CollectorSettings",
    "EnvFactory",
    "EpisodeRecord",
    "Sample",
    "TooManyFailuresError",
    "TreeConfig",
]
