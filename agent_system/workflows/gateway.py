"""A team that is a program with an OpenAI client: see `agent_system.gateway`.

    agent.orchestra_type=gateway agent.team=my_module:team agent.agent_ids='[Writer,Editor]'
    env.env_name=math

An agent that is registered under its name keeps its projection; others need no class. A program
that returns its own reward needs no environment of its own: env.env_name=gateway.
"""

from __future__ import annotations

from typing import Any

from agent_system.agent import BaseAgent
from agent_system.environment import BaseEnv, Observation, Task
from agent_system.errors import AgentSystemError
from agent_system.gateway.team import GATEWAY, GatewayOrchestra
from agent_system.registry import ANY, AgentRegistry, EnvRegistry, OrchestraRegistry

OrchestraRegistry.register(GATEWAY)(GatewayOrchestra)


@AgentRegistry.register(ANY, orchestra=GATEWAY)
class GatewayAgent(BaseAgent):
    """An agent whose messages come from the program; its action is its whole reply without the
    thinking.
    """


@EnvRegistry.register(GATEWAY)
class ScoredByProgram(BaseEnv):
    """An environment for programs that return their reward or an `Outcome`: it shows the task."""

    blocking = False
    needs_ground_truth = False

    def reset(self, task: Task) -> Observation:
        """Show the task."""
        return Observation(task.prompt)

    def step(self, action: Any) -> Any:
        """Raise AgentSystemError: nothing scores an answer."""
        raise AgentSystemError(
            "the team gave an answer, which env.env_name=gateway does not score: let it return a "
            "reward or an Outcome, or choose an environment that scores answers"
        )
