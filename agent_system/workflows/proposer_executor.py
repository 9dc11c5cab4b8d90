"""A team of two that acts in a world: the Tool Agent proposes, or writes a program that does, and
the Executor Agent decides.

A workflow defines the prompts, the options and the environment (`ProposerExecutorEnv`); plan_path,
sudoku and sokoban are examples:

    STYLES = make_styles(world=..., tool=Part(...), executor=Part(...), programmer=Part(...), ...)

    class MyOptions(ProposerExecutorOptions):
        section = "agent.orchestra.my_flow"

    @AgentRegistry.register(TOOL, orchestra="my_flow")
    class MyProposerAgent(ToolRole):
        styles, options, projection = STYLES, MyOptions, tag("plan")

    @AgentRegistry.register(SINGLE, orchestra="single", env="my_flow")
    class SinglePlayer(SingleRole):
        styles, projection = STYLES, tag("plan")
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from agent_system.agent import Entry
from agent_system.environment import BaseEnv, Outcome
from agent_system.options import check_choice
from agent_system.orchestra import BaseOrchestra
from agent_system.projection import Projection
from agent_system.turn import Turn
from agent_system.workflows.moves import parse_moves
from agent_system.workflows.programs import Program, check_writes_programs, read_program, run_program
from agent_system.workflows.single import SINGLE, SingleAgent
from agent_system.workflows.styled import StyledAgent

TOOL = "Tool Agent"
EXECUTOR = "Executor Agent"
PROMPT_STYLES = ("full", "short")
NO_PLAN = "the reply holds no plan"


@dataclass(frozen=True)
class ProposerExecutorOptions:
    """Options under `agent.orchestra.<workflow>`.

    Attributes:
        prompt_style: wording of the prompts: full | short (for models of a few million parameters).
        tool: how the Tool proposes: `direct` (it writes the proposal) | code (it writes a program
            that prints it, run in the sandbox).
        section: configuration section of the options, for messages.
        direct: value of `tool` for proposals without a program.
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
    """Prompt templates for one kind of model. Literal braces are doubled.

    Attributes:
        tool, executor: templates with `{env_prompt}`, `{team_context}` (the Tool's reply) or
            `{proposal}` (the proposal as parsed by the environment from the reply or from the
            program's output), `{memory}`, `{step}` and the environment's own variables.
        entry: template for quoting a reply of this turn, with `{role}` (first word of the agent's
            name), `{text}`, and `{moves}` (its action, a space between characters).
        separator: text between replies.
        no_replies: text for an empty discussion.
        no_moves: text for an empty action.
    """

    tool: str
    executor: str
    entry: str
    separator: str = "\n\n"
    no_replies: str = ""
    no_moves: str = ""


@dataclass(frozen=True)
class Part:
    """A role's part of the prompt in the full style: its role and its task."""

    role: str
    task: str


def make_styles(
    *,
    world: str,
    tool: Part,
    executor: Part,
    programmer: Part,
    single: Part,
    heading: str,
    printed: str,
    quoting: Mapping[str, str],
    short: PromptStyle,
) -> dict[str, PromptStyle]:
    """Return the styles `full`, `code` (of `tool=code`), `single` (one agent without a team, as
    `tool`) and `short`.

    Args:
        world: rules and state, with `{env_prompt}`; ends with a line break.
        tool, executor: parts of both roles.
        programmer: part of a Tool that writes a program.
        single: part of an agent that acts alone.
        heading: heading of the proposal in the Executor's prompt.
        printed: template for a program's output in the Executor's prompt, with `{proposal}`.
        quoting: `entry` and the other fields of `PromptStyle` for quoting replies in the full
            style.
        short: the style for small models.
    """

    def prompt(part: Part, proposed: str = "", end: str = "") -> str:
        return f"{part.role}\n\n{world}\n{proposed}# Your part\n{part.task}{end}"

    def proposed(proposal: str) -> str:
        return f"# {heading}\n{proposal}\n\n"

    fence = " End with the program in a fence:\n\n```python\n...\n```"
    full = PromptStyle(prompt(tool), prompt(executor, proposed("{team_context}")), **quoting)
    code = replace(full, tool=prompt(programmer, end=fence), executor=prompt(executor, proposed(printed)))
    return {"full": full, "code": code, "single": replace(full, tool=prompt(single)), "short": short}


class ProposerExecutorAgent(StyledAgent):
    """A role whose prompt shows the proposal of this turn; `styles` comes from `make_styles`."""

    @property
    def style_name(self) -> str:
        return "code" if self.config.tool == "code" else self.config.prompt_style

    def team_context(self, entries: Sequence[Entry]) -> str:
        style = self.style
        quoted = (
            style.entry.format(
                role=entry.agent_id.split()[0],
                text=entry.text,
                moves=" ".join(entry.action) or style.no_moves,
            )
            for entry in entries
        )
        return style.separator.join(quoted) or style.no_replies


class ToolRole(ProposerExecutorAgent):
    """The proposing role; with `tool=code` its action is the last Python block of its reply, as a
    `Program`.
    """

    role = TOOL
    template = "tool"

    def project(self, text: str) -> Projection:
        return read_program(text) if self.config.tool == "code" else super().project(text)


class ExecutorRole(ProposerExecutorAgent):
    """The role that checks the proposal and decides on the moves."""

    role = EXECUTOR
    template = "executor"


class SingleRole(SingleAgent):
    """One agent that acts without a proposal, in the Tool's form; its action is executed."""

    template = "tool"

    @property
    def style_name(self) -> str:
        return "single" if self.config.prompt_style == "full" else self.config.prompt_style


class ProposerExecutorOrchestra(BaseOrchestra):
    """One proposal and one decision per turn; the Executor's action is the team's."""

    agents = (TOOL, EXECUTOR)

    def __init__(self, config: ProposerExecutorOptions | None = None) -> None:
        super().__init__(config)
        self.uses_sandbox = self.config.tool == "code"

    async def run(self, turn: Turn) -> str:
        await turn.act(TOOL)
        decided = await turn.act(EXECUTOR)
        return decided.action


class ProposerExecutorEnv(BaseEnv):
    """An environment that judges the Tool's proposal without executing it, and executes the
    Executor's action.

    A Tool's action that is a `Program` is run in the sandbox, and its output is judged as the
    proposal.

    Attributes:
        plan_form: form of a proposal in words, for messages.
    """

    plan_form: ClassVar[str] = "list of moves"

    def act(self, agent_id: str, action: str) -> Any:
        """Judge the Tool's proposal, or execute the action of the Executor or of a single agent. A
        `Program` must be awaited.
        """
        if agent_id in (EXECUTOR, SINGLE):
            return self._execute(action)
        if agent_id == TOOL:
            return self._run(action) if isinstance(action, Program) else self._propose(action)
        return Outcome()

    async def _run(self, program: Program) -> Outcome:
        output = await run_program(program, self._program_input(), self._is_plan, self.plan_form)
        judged = (output.text, output.reason, not output.text)
        return await asyncio.to_thread(self._propose, *judged) if self.blocking else self._propose(*judged)

    @abstractmethod
    def _execute(self, action: str) -> Outcome:
        """Execute the Executor's action."""

    @abstractmethod
    def _propose(self, action: str, reason: str = NO_PLAN, failed_run: bool = False) -> Outcome:
        """Judge a proposal.

        Args:
            action: the proposal; empty when there is none.
            reason: why the proposal could not be parsed, if it could not; shown to the Executor.
            failed_run: a program printed no proposal.
        """

    @abstractmethod
    def _program_input(self) -> str:
        """Return the state as the Tool's program reads it from standard input."""

    def _is_plan(self, text: str) -> bool:
        """Return whether `text` can be parsed as a proposal, without evaluating it."""
        return parse_moves(text) is not None
