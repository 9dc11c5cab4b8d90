"""Agents: registries, orchestras, environments, rollout. Only `launch` imports more of verl than
protocol, configuration and names.
"""

from agent_system.agent import BaseAgent, Entry
from agent_system.environment import BaseEnv, Grid, Observation, Outcome, Task
from agent_system.errors import AgentSystemError
from agent_system.memory import Memory, SearchMemory, SimpleMemory, SummaryMemory
from agent_system.orchestra import BaseOrchestra
from agent_system.projection import Projection, boxed_answer, code_block, number, raw_text, tag, verdict
from agent_system.record import EpisodeRecord, Sample
from agent_system.registry import (
    AgentRegistry,
    EnvRegistry,
    OrchestraRegistry,
    RewardManagerRegistry,
    load_plugins,
)
from agent_system.reward.manager import Reward, RewardManager
from agent_system.turn import Turn, TurnOver

__all__ = [
    "AgentRegistry",
    "AgentSystemError",
    "BaseAgent",
    "BaseEnv",
    "BaseOrchestra",
    "Entry",
    "EnvRegistry",
    "EpisodeRecord",
    "Grid",
    "Memory",
    "Observation",
    "OrchestraRegistry",
    "Outcome",
    "Projection",
    "Reward",
    "RewardManager",
    "RewardManagerRegistry",
    "Sample",
    "SearchMemory",
    "SimpleMemory",
    "SummaryMemory",
    "Task",
    "Turn",
    "TurnOver",
    "boxed_answer",
    "code_block",
    "load_plugins",
    "number",
    "raw_text",
    "tag",
    "verdict",
]
