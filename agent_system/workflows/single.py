"""One agent that does all: the baseline beside a team, in the same environment with the same
rewards.

    agent.orchestra_type=single agent.agent_ids='[Single Agent]' env.env_name=math

A workflow registers its agent (and an orchestra, if it needs another memory or check) for its
environment:

    @AgentRegistry.register(SINGLE, orchestra="single", env="math")
    class SingleMathAgent(SingleAgent, MathAgent): ...
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from agent_system.options import check_choice
from agent_system.orchestra import BaseOrchestra
from agent_system.registry import OrchestraRegistry
from agent_system.turn import Turn
from agent_system.workflows.styled import StyledAgent

SINGLE = "Single Agent"
PROMPT_STYLES = ("full", "short")


@dataclass(frozen=True)
class SingleOptions:
    """Options under `agent.orchestra.single`.

    Attributes:
        prompt_style: wording of the prompt: full | short (for models of a few million parameters).
    """

    prompt_style: str = "full"

    def __post_init__(self) -> None:
        check_choice("agent.orchestra.single.prompt_style", self.prompt_style, PROMPT_STYLES)


class SingleAgent(StyledAgent):
    """The only agent of an environment; a workflow sets `styles`, `template` and `projection`.

    Where one role of the team proposes what the single agent does, the short prompts of both are
    equal, so that a model that has learned the role can play alone.
    """

    role = SINGLE
    options: ClassVar[type] = SingleOptions


@OrchestraRegistry.register("single")
class SingleOrchestra(BaseOrchestra):
    """One call per turn; its action is that of the turn."""

    agents = (SINGLE,)
    config_class = SingleOptions

    async def run(self, turn: Turn) -> str:
        reply = await turn.act(SINGLE)
        return reply.action
