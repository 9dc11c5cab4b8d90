"""The Tool plans cells, or writes a program that prints them; the Executor checks the plan and
writes on the board.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from agent_system.projection import tag
from agent_system.registry import AgentRegistry, OrchestraRegistry
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
# Sudoku
Every row, every column and every box holds each digit exactly once. A dot is an empty cell. The digits of the puzzle are clues and \
cannot be changed; other cells may be written again. Once something is written, the board as it is stands under "Now:".
{env_prompt}

# Earlier turns
{memory}
""",
    tool=Part(
        "You are the Tool Agent in a team of two. You propose a plan; the Executor checks it and "
        "writes it on the board.",
        """\
This is turn {step}. Work out the empty cells step by step, those with one possible digit first. End with the plan: either cells as \
row, column, digit (counted from 1), such as <plan>1 2 3; 4 1 2</plan>, or the whole grid with one line per row between <plan> and \
</plan>.""",
    ),
    executor=Part(
        "You are the Executor in a team of two. The Tool Agent proposes a plan; what you write is "
        "what counts.",
        """\
This is turn {step}. Check every cell of the plan against its row, column and box, and mend what is wrong. End with what you write: \
either cells as row, column, digit (counted from 1; digit 0 empties a cell), such as <action>1 2 3; 4 1 2</action>, or the whole grid \
with one line per row between <action> and </action>. One cell that is a clue or lies outside the board stops the action there.""",
    ),
    programmer=Part(
        "You are the Tool Agent in a team of two. You write a program that fills the board; "
        "the Executor checks what it prints and writes it on the board.",
        """\
This is turn {step}. Write a Python program that solves the puzzle and prints the cells that are to be written, a line each as row, \
column, digit (counted from 1), such as 1 2 3, or else the whole grid with one line per row, and nothing else. It is run once and reads \
from standard input the clues, a line per row with blanks between the digits and 0 for an empty cell, then an empty line, then the \
board as it is in the same form. It has the standard library, and a few seconds.""",
    ),
    single=Part(
        "You solve a Sudoku.",
        """\
This is turn {step}. Work out the empty cells step by step, those with one possible digit first, and check every cell against its row, \
column and box. End with what you write: either cells as row, column, digit (counted from 1; digit 0 empties a cell), such as \
<plan>1 2 3; 4 1 2</plan>, or the whole grid with one line per row between <plan> and </plan>. One cell that is a clue or lies outside \
the board stops the action there.""",
    ),
    heading="Proposed in this turn",
    printed="The Tool's program printed:\n{proposal}",
    quoting={"entry": "[{role}]\n{text}", "no_replies": "(nothing)"},
    short=PromptStyle(
        tool="Plan:\n{env_prompt}{team_context}",
        executor="Fill:\n{env_prompt}{team_context}",
        entry="\n{role}: {text}",
        separator="",
    ),
)


@dataclass(frozen=True)
class SudokuOptions(ProposerExecutorOptions):
    """Options under `agent.orchestra.sudoku`; `tool` is cells (or a whole grid) or code."""

    section: ClassVar[str] = "agent.orchestra.sudoku"
    direct: ClassVar[str] = "cells"

    tool: str = "cells"


@AgentRegistry.register(TOOL, orchestra="sudoku")
class SudokuProposerAgent(ToolRole):
    """The role that proposes cells or a grid in `<plan>...</plan>`; it writes nothing on the board."""

    styles = STYLES
    options = SudokuOptions
    projection = tag("plan")


@AgentRegistry.register(EXECUTOR, orchestra="sudoku")
class SudokuExecutorAgent(ExecutorRole):
    """The role that reads the plan and writes cells or a grid in `<action>...</action>`."""

    styles = STYLES
    options = SudokuOptions
    projection = tag("action")


@AgentRegistry.register(SINGLE, orchestra="single", env="sudoku")
class SingleSudokuAgent(SingleRole):
    """One agent that fills the board alone, in `<plan>...</plan>`."""

    styles = STYLES
    projection = tag("plan")


@OrchestraRegistry.register("sudoku")
class SudokuOrchestra(ProposerExecutorOrchestra):
    """One plan, then the cells that are written."""

    config_class = SudokuOptions
