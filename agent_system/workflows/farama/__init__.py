"""Environments of Gymnasium and PettingZoo: one player or several, in turn or at the same time, with or without advisers."""

from agent_system.workflows.farama.spaces import IllegalActionError, actions_text, read_action, text_of  # isort: skip
from agent_system.workflows.farama.agents import FaramaAgent
from agent_system.workflows.farama.env import FaramaEnv
from agent_system.workflows.farama.options import FaramaEnvOptions, FaramaOptions
from agent_system.workflows.farama.orchestra import FaramaOrchestra

__all__ = [
    "FaramaAgent",
    "FaramaEnv",
    "FaramaEnvOptions",
    "FaramaOptions",
    "FaramaOrchestra",
    "IllegalActionError",
    "actions_text",
    "read_action",
    "text_of",
]
