"""A Reasoner and a Tool-user answer at the same time in every turn until they agree."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from agent_system.agent import Entry, Message
from agent_system.errors import AgentSystemError
from agent_system.options import check_choice
from agent_system.orchestra import BaseOrchestra
from agent_system.projection import boxed_answer
from agent_system.registry import AgentRegistry, OrchestraRegistry
from agent_system.tools import ToolAgent, python
from agent_system.turn import Turn
from agent_system.workflows.single import SINGLE, SingleAgent
from agent_system.workflows.styled import StyledAgent

REASONER = "Reasoner Agent"
TOOL_USER = "Tool Agent"


@dataclass(frozen=True)
class MathToolPromptStyle:
    """Prompt templates for one kind of model. Literal braces are doubled.

    Attributes:
        reasoner, tool: templates with `{env_prompt}` and `{feedback}` (result of the last turn;
            empty in the first).
        feedback: template with `{reasoner}` and `{tool}`, their answers.
        nothing: text for a missing answer.
    """

    reasoner: str
    tool: str
    feedback: str
    nothing: str


FULL = MathToolPromptStyle(
    reasoner="""\
You are the Reasoner in a team of two. You solve a problem by reasoning; the Tool-user solves it by a program. You are done when your \
answers agree.

# Problem
{env_prompt}{feedback}

# Your part
Work the problem out step by step. If your answers differ, find out first which one is wrong. End with the final answer alone \
in \\boxed{{}}.""",
    tool="""\
You are the Tool-user in a team of two. You solve a problem with Python programs; the Reasoner solves it by reasoning. You are done when \
your answers agree.

# Problem
{env_prompt}{feedback}

# Your part
Compute the final answer with a program: call the tool `python` with one that prints it. A program reads nothing and has the standard \
library. If your answers differ, find out first which one is wrong. End with the final answer alone in \\boxed{{}}.""",
    feedback="""

# The last turn
The Reasoner's answer: {reasoner}
The Tool-user's answer: {tool}
The answers differ, or one is missing.""",
    nothing="(none)",
)


SHORT = MathToolPromptStyle(
    reasoner="Reason: {env_prompt}{feedback}",
    tool="Program: {env_prompt}{feedback}",
    feedback="\nReasoner {reasoner}\nTool {tool}",
    nothing="none",
)


STYLES = {"full": FULL, "short": SHORT}
ALONE = """\
You solve a problem by reasoning and with Python programs.

# Problem
{env_prompt}

# Your part
Work the problem out step by step. Call the tool `python` with a program that prints what you want to know; it reads nothing and has the \
standard library. End with the final answer alone in \\boxed{{}}."""
SINGLE_STYLES = {
    "full": replace(FULL, reasoner=ALONE),
    "short": replace(SHORT, reasoner="Program: {env_prompt}"),
}


@dataclass(frozen=True)
class MathToolOptions:
    """Options under `agent.orchestra.math_tool`.

    Attributes:
        prompt_style: wording of the prompts: full | short (for models of a few million parameters).
        max_rounds: generations of the Tool-user per turn; tool calls of the last one are not run,
            so with 1 it has no tool.
    """

    prompt_style: str = "full"
    max_rounds: int = 4

    def __post_init__(self) -> None:
        check_choice("agent.orchestra.math_tool.prompt_style", self.prompt_style, tuple(STYLES))
        if self.max_rounds < 1:
            raise AgentSystemError(
                f"agent.orchestra.math_tool.max_rounds must be at least 1, found {self.max_rounds}"
            )


class MathToolAgent(StyledAgent):
    """A role whose prompt shows the problem and, from the second turn on, both answers of the last
    turn. Its action is the content of the last `\boxed{}`.
    """

    styles = STYLES
    options: ClassVar[type] = MathToolOptions
    projection = boxed_answer

    def team_context(self, entries: Sequence[Entry]) -> str:
        """Return an empty text: the roles do not read each other within a turn."""
        return ""

    def messages(self, variables: Mapping[str, Any]) -> list[Message]:
        """Return the messages of `BaseAgent`, with `{feedback}` built from `last`, the
        environment's result of the last turn.
        """
        last = {name: text or self.style.nothing for name, text in (variables.get("last") or {}).items()}
        return super().messages({**variables, "feedback": self.style.feedback.format(**last) if last else ""})


@AgentRegistry.register(REASONER, orchestra="math_tool")
class ReasonerAgent(MathToolAgent):
    """The role that solves by reasoning."""

    role = REASONER
    template = "reasoner"


@AgentRegistry.register(TOOL_USER, orchestra="math_tool")
class ToolUserAgent(MathToolAgent, ToolAgent):
    """The role that solves with programs, which it runs by the tool `python`."""

    role = TOOL_USER
    template = "tool"
    tools = (python,)

    def __init__(self, agent_id: str = "", config: Any = None) -> None:
        super().__init__(agent_id, config)
        self.max_rounds = self.config.max_rounds


@AgentRegistry.register(SINGLE, orchestra="single", env="math_tool")
class SingleMathToolAgent(SingleAgent, MathToolAgent, ToolAgent):
    """One agent that reasons and has the tool `python`."""

    styles = SINGLE_STYLES
    template = "reasoner"
    tools = (python,)


@OrchestraRegistry.register("math_tool")
class MathToolOrchestra(BaseOrchestra):
    """One answer by reasoning and one with programs per turn; the environment compares them."""

    agents = (REASONER, TOOL_USER)
    config_class = MathToolOptions

    async def run(self, turn: Turn) -> str:
        reasoned, _ = await asyncio.gather(turn.act(REASONER), turn.act(TOOL_USER))
        return reasoned.action
