"""A team of two that acts in a world: the Tool Agent proposes, or writes a program that does, and the Executor Agent decides.

A workflow states what differs. `team.py` of plan_path, sudoku and sokoban are examples:

    STYLES = make_styles(world=..., tool=Part(...), executor=Part(...), programmer=Part(...), ...)

    class MyOptions(ProposerExecutorOptions):
        section = "agent.orchestra.my_flow"

    @AgentRegistry.register(TOOL, orchestra="my_flow")
    class ToolAgent(ToolRole):
        styles, options, projection = STYLES, MyOptions, tag("plan")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from agent_system.agent import Entry
from agent_system.options import check_choice
from agent_system.orchestra import BaseOrchestra
from agent_system.projection import Projection
from agent_system.turn import Turn
from agent_system.workflows.programs import check_writes_programs, read_program
from agent_system.workflows.styled import StyledAgent

TOOL = "Tool Agent"
EXECUTOR = "Executor Agent"
PROMPT_STYLES = ("full", "short")


@dataclass(frozen=True)
class ProposerExecutorOptions:
    """Options under `agent.orchestra.<workflow>`.

    Attributes:
        prompt_style: wording of the prompts: full | short (for models of a few million parameters).
        tool: how the Tool proposes: `direct` (it writes the proposal) | code (it writes a program that prints it, run in the sandbox).
        section: of the options, for messages.
        direct: name of the value of `tool` that stands for no program.
    """

    section: ClassVar[str]
    direct: ClassVar[str] = "moves"

    prompt_style: str = "full"
    tool: str = "moves"

    def __post_init__(self) -> None:
        check_choice(f"{self.section}.prompt_style", self.prompt_style, PROMPT_STYLES)
        check_choice(f"{self.section}.tool", self.tool, (self.direct, "code"))
        check_writes_programs(self.section, self.tool, self.prompt_style, otherwise=self.direct)


@dataclass(frozen=True)
class PromptStyle:
    """The wording for one kind of model. Literal braces are written twice.

    Attributes:
        tool, executor: templates with `{env_prompt}`, `{team_context}` (the Tool's reply) or `{proposal}` (what the environment has read
            from it or from what its program printed), `{memory}`, `{step}` and what the environment adds.
        entry: how a reply of this turn is quoted, with `{role}` (first word of the agent's name), `{text}`, and `{moves}` (its action,
            a blank between characters).
        separator: between replies.
        nobody_spoke: stands for an empty discussion.
        no_moves: stands for an empty action.
    """

    tool: str
    executor: str
    entry: str
    separator: str = "\n\n"
    nobody_spoke: str = ""
    no_moves: str = ""


@dataclass(frozen=True)
class Part:
    """A role's part in the full style: who it is, and what it is asked to do."""

    role: str
    task: str


def make_styles(
    *, world: str, tool: Part, executor: Part, programmer: Part, heading: str, printed: str, quoting: Mapping[str, str], short: PromptStyle
) -> dict[str, PromptStyle]:
    """Return the styles `full`, `code` (of `tool=code`) and `short`.

    Args:
        world: rules and state, with `{env_prompt}`; ends with a line break.
        tool, executor: both roles.
        programmer: the Tool that writes a program.
        heading: over the proposal that the Executor reads.
        printed: how the Executor reads what a program has printed, with `{proposal}`.
        quoting: `entry` and what else `PromptStyle` needs to quote replies in the full style.
        short: the style for small models.
    """

    def prompt(part: Part, said: str = "", end: str = "") -> str:
        return f"{part.role}\n\n{world}\n{said}# Your part\n{part.task}{end}"

    def said(proposal: str) -> str:
        return f"# {heading}\n{proposal}\n\n"

    fence = " End with the program in a fence:\n\n```python\n...\n```"
    full = PromptStyle(prompt(tool), prompt(executor, said("{team_context}")), **quoting)
    code = replace(full, tool=prompt(programmer, end=fence), executor=prompt(executor, said(printed)))
    return {"full": full, "code": code, "short": short}


class ProposerExecutorAgent(StyledAgent):
    """A role that reads the proposal of this turn; `styles` is what `make_styles` returns."""

    @property
    def style_name(self) -> str:
        return "code" if self.config.tool == "code" else self.config.prompt_style

    def team_context(self, entries: Sequence[Entry]) -> str:
        style = self.style
        quoted = (
            style.entry.format(role=entry.agent_id.split()[0], text=entry.text, moves=" ".join(entry.action) or style.no_moves)
            for entry in entries
        )
        return style.separator.join(quoted) or style.nobody_spoke


class ToolRole(ProposerExecutorAgent):
    """Proposes; with `tool=code` its action is the last Python block of its reply, as a `Program`."""

    role, template = TOOL, "tool"

    def project(self, text: str) -> Projection:
        return read_program(text) if self.config.tool == "code" else super().project(text)


class ExecutorRole(ProposerExecutorAgent):
    """Checks the proposal and decides what is done."""

    role, template = EXECUTOR, "executor"


class ProposerExecutorOrchestra(BaseOrchestra):
    """One proposal and one decision a turn; the Executor's action is the team's."""

    agents = (TOOL, EXECUTOR)

    def __init__(self, config: ProposerExecutorOptions | None = None) -> None:
        super().__init__(config)
        self.uses_sandbox = self.config.tool == "code"

    async def run(self, turn: Turn) -> str:
        await turn.act(TOOL)
        decided = await turn.act(EXECUTOR)
        return decided.action
