"""The Tool proposes moves, or writes a program that does; the Executor decides which moves are
made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from agent_system.registry import AgentRegistry, OrchestraRegistry
from agent_system.workflows.moves import read_moves
from agent_system.workflows.proposer_executor import (
    EXECUTOR,
    TOOL,
    ExecutorRole,
    Part,
    PromptStyle,
    ProposerExecutorOptions,
    ProposerExecutorOrchestra,
    SingleRole,
    ToolRole,
    make_styles,
)
from agent_system.workflows.single import SINGLE

STYLES = make_styles(
    world="""\
# World
{env_prompt}

Moves: U (up, row - 1), D (down, row + 1), L (left, column - 1), R (right, column + 1). Rows and columns count from 0 at the top left. \
A turn makes at most {max_moves} moves, one after the other; the first one into a wall or over the edge ends it.
""",
    tool=Part(
        "You are the Tool in a team of two that walks to a goal. You propose the next moves; the "
        "Executor checks them and walks.",
        """\
Find a short way around the walls and propose its first moves. End with them in the form <moves>R, R, D</moves>.""",
    ),
    executor=Part(
        "You are the Executor in a team of two that walks to a goal. "
        "The Tool proposes moves; you check them, and the moves you give are made.",
        """\
Follow the proposed moves cell by cell. If one is illegal or leads away from the goal, choose better ones. End with the moves to make in \
the form <moves>R, R, D</moves>.""",
    ),
    programmer=Part(
        "You are the Tool in a team of two that walks to a goal. You write a program that proposes "
        "moves; the Executor checks them and walks.",
        """\
Write a Python program that finds a short way around the walls from where you are to the goal and prints its moves in the form R, R, D, \
and nothing else. It is run once and reads the map from standard input, a row a line: @ is you, G the goal, # a wall, . free. It has the \
standard library, and a few seconds. The first {max_moves} moves that it prints are proposed.""",
    ),
    single=Part(
        "You walk to a goal.",
        """\
Find a short way around the walls and follow it cell by cell. End with the next moves, which are made, in the form \
<moves>R, R, D</moves>.""",
    ),
    heading="Proposal",
    printed="The Tool's program proposes: {proposal}",
    quoting={"entry": "[{role}]\n{text}"},
    short=PromptStyle(
        tool="Plan: {env_prompt}", executor="Check: {env_prompt}\n{team_context}", entry="{role}: {text}"
    ),
)


@dataclass(frozen=True)
class PlanPathOptions(ProposerExecutorOptions):
    """Options under `agent.orchestra.plan_path`; `tool` is moves or code."""

    section: ClassVar[str] = "agent.orchestra.plan_path"


@AgentRegistry.register(TOOL, orchestra="plan_path")
class PlanPathProposerAgent(ToolRole):
    """The role that proposes the next moves, as letters."""

    styles = STYLES
    options = PlanPathOptions
    projection = read_moves


@AgentRegistry.register(EXECUTOR, orchestra="plan_path")
class PlanPathExecutorAgent(ExecutorRole):
    """The role that decides which moves are made."""

    styles = STYLES
    options = PlanPathOptions
    projection = read_moves


@AgentRegistry.register(SINGLE, orchestra="single", env="plan_path")
class SinglePlanPathAgent(SingleRole):
    """One agent that walks alone."""

    styles = STYLES
    projection = read_moves


@OrchestraRegistry.register("plan_path")
class PlanPathOrchestra(ProposerExecutorOrchestra):
    """The next turn starts where the Executor's moves ended."""

    config_class = PlanPathOptions
