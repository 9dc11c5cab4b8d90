"""Environments of Gymnasium and PettingZoo: one player or several, in turn or at the same time,
with or without advisers.
"""

# Imported first, because its error names the package to install when gymnasium is missing.
from agent_system.workflows.farama.world.spaces import (  # isort: skip
    IllegalActionError,
    actions_text,
    read_action,
    text_of,
)
from agent_system.workflows.farama.env import FaramaEnv, FaramaEnvOptions
from agent_system.workflows.farama.team import FaramaAgent, FaramaOptions, FaramaOrchestra

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
