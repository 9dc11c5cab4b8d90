"""Options of the Sokoban workflow: how hard the rooms are, how the world pays, how the team speaks."""

from __future__ import annotations

from dataclasses import dataclass

from agent_system.errors import AgentSystemError
from agent_system.options import check_choice
from agent_system.workflows.programs import check_writes_programs
from agent_system.workflows.sokoban.prompts import STYLES
from agent_system.workflows.sokoban.view import VIEWS

PROGRESS = ("boxes", "distance")
TOOLS = ("moves", "code")


@dataclass(frozen=True)
class Difficulty:
    """What rooms the generator makes.

    Attributes:
        size: width and height in cells, the ring of walls counted: 6 leaves 4x4 cells to move in.
        boxes: how many, and as many goals.
        min_pushes, max_pushes: bounds of the fewest pushes that solve a room.
        wall_share: chance of a wall in a cell inside the ring, 0 to 0.6.
    """

    size: int = 6
    boxes: int = 1
    min_pushes: int = 2
    max_pushes: int = 30
    wall_share: float = 0.1

    def __post_init__(self) -> None:
        cells = (self.size - 2) ** 2
        if not 5 <= self.size <= 12:
            raise AgentSystemError(f"Sokoban size must be 5 to 12, found {self.size}")
        if not 1 <= self.boxes <= cells // 4:
            raise AgentSystemError(f"Sokoban boxes must be 1 to {cells // 4} in a room of size {self.size}, found {self.boxes}")
        if not 1 <= self.min_pushes <= self.max_pushes:
            raise AgentSystemError(f"Sokoban needs 1 <= min_pushes <= max_pushes, found {self.min_pushes} and {self.max_pushes}")
        if not 0.0 <= self.wall_share <= 0.6:
            raise AgentSystemError(f"Sokoban wall_share must be 0 to 0.6, found {self.wall_share:g}")


@dataclass(frozen=True)
class SokobanEnvOptions:
    """Options under `env.params`.

    Attributes:
        view: what the agents see: map | spaced (a blank between cells, so that a tokenizer makes each cell a token) | compact (the ways to
            box and goal and the cells around the box, always at the same place; rooms with one box).
        max_moves: most moves of one turn; what follows is not made and counts as cut.
        progress: what the team is paid for on the way: boxes (best count on goals so far) | distance (least pushes left so far, by the
            lower bound of the solver).
        progress_weight: share of the team's reward that progress earns; the rest is for solving the room.
        plan_weight: local reward of a plan, times what the team would have earned with its moves beyond the last plan, or beyond what
            has been made since.
        format_penalty: local, for a reply without readable moves.
        illegal_penalty: local, for moves that run into a wall or a blocked box, and for moves past `max_moves`.
        deadlock_penalty: local, for moves after which the room cannot be solved any more.
        deadlock_ends: that ends the episode.
        shortfall_penalty: local, for moves that lead away from the end; half of it for moves that lead nowhere, nothing for those of the
            solver, as many as fit into a turn. Above 0 the solver looks at every state that a reply leads to, which takes long in large
            rooms with many boxes.
    """

    view: str = "map"
    max_moves: int = 10
    progress: str = "boxes"
    progress_weight: float = 0.5
    plan_weight: float = 0.5
    format_penalty: float = 0.1
    illegal_penalty: float = 0.05
    deadlock_penalty: float = 0.1
    deadlock_ends: bool = False
    shortfall_penalty: float = 0.0

    def __post_init__(self) -> None:
        if self.max_moves < 1:
            raise AgentSystemError(f"env.params.max_moves must be 1 or more, found {self.max_moves}")
        check_choice("env.params.view", self.view, VIEWS)
        check_choice("env.params.progress", self.progress, PROGRESS)
        if not 0.0 <= self.progress_weight <= 1.0:
            raise AgentSystemError(f"env.params.progress_weight must be 0 to 1, found {self.progress_weight:g}")
        for name in ("plan_weight", "format_penalty", "illegal_penalty", "deadlock_penalty", "shortfall_penalty"):
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise AgentSystemError(f"env.params.{name} must be 0 or a positive number, found {getattr(self, name):g}")


@dataclass(frozen=True)
class SokobanOptions:
    """Options under `agent.orchestra.sokoban`.

    Attributes:
        prompt_style: wording of the prompts: full | short (for models of a few million parameters).
        tool: how the Tool proposes: moves (it writes them) | code (it writes a program that prints them, run in the sandbox).
    """

    prompt_style: str = "full"
    tool: str = "moves"

    def __post_init__(self) -> None:
        check_choice("agent.orchestra.sokoban.prompt_style", self.prompt_style, tuple(STYLES))
        check_choice("agent.orchestra.sokoban.tool", self.tool, TOOLS)
        check_writes_programs("agent.orchestra.sokoban", self.tool, self.prompt_style, otherwise="moves")
