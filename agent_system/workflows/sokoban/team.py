"""The Tool proposes moves, or writes a program that does; the Executor checks and makes them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from agent_system.projection import Projection
from agent_system.registry import AgentRegistry, OrchestraRegistry
from agent_system.workflows import moves
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

# What a move is, by `env.params.actions`.
RULES = {
    "moves": """\
A move goes one cell up, down, left or right (U D L R). Walking into a box pushes it one cell further if that cell is free; boxes cannot \
be pulled, and only one is pushed at a time.""",
    "pushes": """\
A move pushes the box one cell up, down, left or right (U D L R) if that cell is free. The player first walks to the cell behind the box, \
which must be reachable without another push; boxes cannot be pulled.""",
}

STYLES = make_styles(
    world="""\
Sokoban: push every box onto a goal. {rules} A box pushed into a corner is lost. A turn makes \
at most {max_moves} moves, one after the other; the first one that cannot be made ends it.
# wall, - floor, @ player, $ box, . goal, * box on a goal, + player on a goal

# Room
{env_prompt}
""",
    tool=Part(
        "You are the Tool agent in a team of two. You propose the next moves; the Executor checks "
        "and makes them.",
        """\
Work out which cell the player must stand on to push each box towards a goal, and how to get there. End with your plan as a list of \
moves, such as <moves>U R R D</moves>.""",
    ),
    executor=Part(
        "You are the Executor in a team of two. The Tool agent proposes moves; you check them, "
        "mend them where they are wrong, and act.",
        """\
Follow the proposal move by move on the map. If it runs into a wall, pushes a blocked box or loses a box in a corner, write better \
moves. End with the moves that are to be made, such as <moves>U R R D</moves>.""",
    ),
    programmer=Part(
        "You are the Tool agent in a team of two. You write a program that proposes moves; the "
        "Executor checks and makes them.",
        """\
Write a Python program that works out how to push each box onto a goal and prints the next moves, at most \
{max_moves}, in the form U R R D, and nothing else. It is run once and reads the room as it is from standard input, a row a line without \
blanks, in the signs above. It has the standard library, and a few seconds.""",
    ),
    single=Part(
        "You play Sokoban.",
        """\
Work out which cell the player must stand on to push each box towards a goal, and how to get there; follow your moves on the map. End \
with the moves that are to be made, such as <moves>U R R D</moves>.""",
    ),
    heading="Proposal",
    printed="The Tool's program proposes: {proposal}",
    quoting={"entry": "{text}", "separator": "\n", "no_replies": "(none)", "no_moves": "(none)"},
    short=PromptStyle(
        tool="Plan:\n{env_prompt}",
        executor="Act:\n{env_prompt}\n{team_context}",
        entry="Plan: {moves}",
        separator="\n",
        no_replies="Plan: ?",
        no_moves="?",
    ),
)


@dataclass(frozen=True)
class SokobanOptions(ProposerExecutorOptions):
    """Options under `agent.orchestra.sokoban`; `tool` is moves or code."""

    section: ClassVar[str] = "agent.orchestra.sokoban"


def read_moves(text: str) -> Projection:
    """Return the moves of the last `<moves>...</moves>` as letters, with their number as
    `fields["moves"]`.
    """
    projection = moves.read_moves(text)
    return replace(projection, fields={"moves": len(projection.action)})


@AgentRegistry.register(TOOL, orchestra="sokoban")
class SokobanProposerAgent(ToolRole):
    """The role that proposes the next moves."""

    styles = STYLES
    options = SokobanOptions
    projection = read_moves


@AgentRegistry.register(EXECUTOR, orchestra="sokoban")
class SokobanExecutorAgent(ExecutorRole):
    """The role that checks the proposal and decides which moves are made."""

    styles = STYLES
    options = SokobanOptions
    projection = read_moves


@AgentRegistry.register(SINGLE, orchestra="single", env="sokoban")
class SingleSokobanAgent(SingleRole):
    """One agent that moves alone."""

    styles = STYLES
    projection = read_moves


@OrchestraRegistry.register("sokoban")
class SokobanOrchestra(ProposerExecutorOrchestra):
    """One proposal, then the moves that are made."""

    config_class = SokobanOptions
