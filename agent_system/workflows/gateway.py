"""A team that is a program with an OpenAI client: see `agent_system.gateway`.

    agent.orchestra_type=gateway agent.team=my_module:team agent.agent_ids='[Writer,Editor]' env.env_name=math

An agent that is registered under its name keeps its projection; others need no class.
"""

from __future__ import annotations

from agent_system.agent import BaseAgent
from agent_system.gateway.team import GATEWAY, GatewayOrchestra
from agent_system.registry import ANY, AgentRegistry, OrchestraRegistry

OrchestraRegistry.register(GATEWAY)(GatewayOrchestra)


@AgentRegistry.register(ANY, orchestra=GATEWAY)
class GatewayAgent(BaseAgent):
    """An agent whose messages come from the program; its action is its whole reply without the thinking."""
