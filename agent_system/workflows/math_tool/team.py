"""A Reasoner and a Tool-user answer at the same time in every turn until they agree."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from agent_system.agent import Entry, Message
from agent_system.options import check_choice
from agent_system.orchestra import BaseOrchestra
from agent_system.projection import Projection, boxed_answer, python_block, raw_text
from agent_system.registry import AgentRegistry, OrchestraRegistry
from agent_system.turn import Turn
from agent_system.workflows.single import SINGLE, SingleAgent
from agent_system.workflows.styled import StyledAgent

REASONER = "Reasoner Agent"
TOOL_USER = "Tool Agent"


@dataclass(frozen=True)
class PromptStyle:
    """Prompt templates for one kind of model. Literal braces are doubled.

    Attributes:
        reasoner, tool: templates with `{env_prompt}` and `{feedback}` (result of the last turn; empty in the first).
        feedback: template with `{reasoner}` and `{tool}` (their answers, or the reason why there is none) and `{program}`.
        nothing: text for a missing answer or program.
    """

    reasoner: str
    tool: str
    feedback: str
    nothing: str


FULL = PromptStyle(
    reasoner="""\
You are the Reasoner in a team of two. You solve a problem by reasoning; the Tool-user solves it by a program. You are done when your \
answers agree.

# Problem
{env_prompt}{feedback}

# Your part
Work the problem out step by step. If your answers differ, find out first which one is wrong. End with the final answer alone \
in \\boxed{{}}.""",
    tool="""\
You are the Tool-user in a team of two. You solve a problem by a Python program; the Reasoner solves it by reasoning. You are done when \
your answers agree.

# Problem
{env_prompt}{feedback}

# Your part
Write a program that computes the final answer and prints it alone on its last line. It reads nothing and has the standard library. If \
your answers differ, find out first which one is wrong. End with the program in a fence:

```python
...
```""",
    feedback="""

# The last turn
The Reasoner's answer: {reasoner}
The Tool-user's answer: {tool}
The program was:
```python
{program}
```
The answers differ, or one is missing.""",
    nothing="(none)",
)


SHORT = PromptStyle(
    reasoner="Reason: {env_prompt}{feedback}",
    tool="Program: {env_prompt}{feedback}",
    feedback="\nReasoner {reasoner}\nTool {tool}",
    nothing="none",
)


STYLES = {"full": FULL, "short": SHORT}
ALONE = """\
You solve a problem twice, by reasoning and by a Python program. You are done when both answers agree.

# Problem
{env_prompt}{feedback}

# Your part
Work the problem out step by step. Then write a program that computes the final answer and prints it alone on its last line; it reads \
nothing and has the standard library. If the last answers differ, find out first which one is wrong. Write the program in a fence:

```python
...
```

and end with the final answer of your reasoning alone in \\boxed{{}}."""
SINGLE_STYLES = {
    "full": replace(
        FULL, reasoner=ALONE, feedback=FULL.feedback.replace("The Reasoner's", "Your").replace("The Tool-user's", "Your program's")
    ),
    "short": replace(SHORT, reasoner="Solve: {env_prompt}{feedback}"),
}


@dataclass(frozen=True)
class MathToolOptions:
    """Options under `agent.orchestra.math_tool`.

    Attributes:
        prompt_style: wording of the prompts: full | short (for models of a few million parameters).
    """

    prompt_style: str = "full"

    def __post_init__(self) -> None:
        check_choice("agent.orchestra.math_tool.prompt_style", self.prompt_style, tuple(STYLES))


class MathToolAgent(StyledAgent):
    """A role whose prompt shows the problem and, from the second turn on, both answers and the program of the last turn."""

    styles = STYLES
    options: ClassVar[type] = MathToolOptions

    def team_context(self, entries: Sequence[Entry]) -> str:
        """Return an empty text: the roles do not read each other within a turn."""
        return ""

    def messages(self, variables: Mapping[str, Any]) -> list[Message]:
        """Return the messages of `BaseAgent`, with `{feedback}` built from `last`, the environment's result of the last turn."""
        last = {name: text or self.style.nothing for name, text in (variables.get("last") or {}).items()}
        return super().messages({**variables, "feedback": self.style.feedback.format(**last) if last else ""})


@AgentRegistry.register(REASONER, orchestra="math_tool")
class ReasonerAgent(MathToolAgent):
    r"""The role that solves by reasoning; its action is the content of the last `\boxed{}`."""

    role, template = REASONER, "reasoner"
    projection = boxed_answer


@AgentRegistry.register(TOOL_USER, orchestra="math_tool")
class ToolUserAgent(MathToolAgent):
    """The role that solves by a program; its action is the last Python block of its reply."""

    role, template = TOOL_USER, "tool"
    projection = python_block


@AgentRegistry.register(SINGLE, orchestra="single", env="math_tool")
class SingleMathToolAgent(SingleAgent, MathToolAgent):
    """One agent that reasons and writes a program; its action is the whole reply, valid with a box and a program."""

    styles, template = SINGLE_STYLES, "reasoner"

    def project(self, text: str) -> Projection:
        return replace(raw_text(text), valid=boxed_answer(text).valid and python_block(text).valid)


@OrchestraRegistry.register("math_tool")
class MathToolOrchestra(BaseOrchestra):
    """One answer by reasoning and one by a program per turn; the environment compares them."""

    agents = (REASONER, TOOL_USER)
    config_class = MathToolOptions

    async def run(self, turn: Turn) -> str:
        reasoned, _ = await asyncio.gather(turn.act(REASONER), turn.act(TOOL_USER))
        return reasoned.action
