"""The Tool's plan by code: a program that prints moves. It is run in the sandbox, never in this process."""

from __future__ import annotations

from dataclasses import dataclass

from agent_system.sandbox import Reason, SandboxError, shared_sandbox
from agent_system.workflows.plan_path.grid import GridMap
from agent_system.workflows.plan_path.render import grid_text
from agent_system.workflows.plan_path.rules import State, parse_moves

LONGEST_REASON = 160


class Program(str):
    """An action that is Python source: the environment runs it and takes what it prints for the action."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Proposal:
    """What the Tool proposes.

    Attributes:
        moves: letters (`RRD`), or empty when nothing can be made of its action.
        why: then, the reason in one line of at most `LONGEST_REASON` characters.
    """

    moves: str
    why: str = ""

    @property
    def text(self) -> str:
        """What the Executor reads: `R, R, D`, or `none: ` and the reason."""
        return ", ".join(self.moves) or f"none: {self.why}"


def map_input(grid: GridMap, state: State) -> str:
    """Return what a program reads from stdin: the rows of the map, with `@` for the position and `.` for the start."""
    return "".join(f"{row}\n" for row in grid_text(grid, state).splitlines()[: grid.height])


async def run_program(program: Program, grid: GridMap, state: State) -> Proposal:
    """Run a program in the sandbox of this process. All that it prints must be one list of moves.

    Raises:
        SandboxError: the sandbox failed; the program is not to blame and must not be scored.
    """
    result = await shared_sandbox().run(program, map_input(grid, state))
    if result.reason is Reason.SANDBOX:
        raise SandboxError(f"the Tool's program could not be run: {result.message}")
    if not result.ok:
        return Proposal("", f"the program {result.failure(LONGEST_REASON - len('the program '))}")
    moves = parse_moves(result.stdout)
    return Proposal(moves) if moves else Proposal("", "the program printed no list of moves")
