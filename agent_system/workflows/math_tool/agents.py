"""The two roles. Their wording is in `prompts.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_system.agent import BaseAgent, Message
from agent_system.projection import boxed_answer, code_block
from agent_system.registry import AgentRegistry
from agent_system.workflows.math_tool.options import MathToolOptions
from agent_system.workflows.math_tool.prompts import STYLES

REASONER = "Reasoner Agent"
TOOL_USER = "Tool Agent"


class MathToolAgent(BaseAgent):
    """A role that reads the problem and, from the second turn on, both answers and the program of the last one."""

    def __init__(self, agent_id: str, config: Any = None) -> None:
        super().__init__(agent_id, config if isinstance(config, MathToolOptions) else MathToolOptions())
        self.style = STYLES[self.config.prompt_style]

    def messages(self, variables: Mapping[str, Any]) -> list[Message]:
        """As every agent's, with `{feedback}` made of `last`: the world's word of the last turn, empty in the first."""
        told = {name: text or self.style.nothing for name, text in (variables.get("last") or {}).items()}
        return super().messages({**variables, "feedback": self.style.feedback.format(**told) if told else ""})


@AgentRegistry.register(REASONER, orchestra="math_tool")
class ReasonerAgent(MathToolAgent):
    r"""Solves by reasoning; its action is what stands in the last `\boxed{}`."""

    projection = boxed_answer

    def __init__(self, agent_id: str = REASONER, config: Any = None) -> None:
        super().__init__(agent_id, config)
        self.prompt = self.style.reasoner


@AgentRegistry.register(TOOL_USER, orchestra="math_tool")
class ToolUserAgent(MathToolAgent):
    """Solves by a program: its action is the last Python block of its reply."""

    projection = code_block("python", "python3", "py")

    def __init__(self, agent_id: str = TOOL_USER, config: Any = None) -> None:
        super().__init__(agent_id, config)
        self.prompt = self.style.tool
