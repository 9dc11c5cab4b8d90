"""Who speaks: players and advisers, under any name."""

from __future__ import annotations

from typing import Any

from agent_system.agent import BaseAgent
from agent_system.projection import tag
from agent_system.registry import ANY, AgentRegistry
from agent_system.workflows.farama.options import FaramaOptions

_ASK = """\
You are {agent}.

{env_prompt}

{team_context}

Actions: {actions}.
"""


@AgentRegistry.register(ANY, orchestra="farama")
class FaramaAgent(BaseAgent):
    """A player, or an adviser where `agent.orchestra.farama.advisers` names it; its action is the last `<action>` of its reply.

    To word a role, subclass this and register it by the player's name with `orchestra="farama"`.

    Attributes:
        prompt: of a player.
        advice: of an adviser.
    """

    prompt = _ASK + "End with the action you take in the form <action>...</action>."
    advice = _ASK + "You advise who acts next. End with the action you propose in the form <action>...</action>."
    projection = tag("action")

    def __init__(self, agent_id: str, config: Any = None) -> None:
        super().__init__(agent_id, config if isinstance(config, FaramaOptions) else FaramaOptions())
        if agent_id in self.config.advisers:
            self.prompt = self.advice
