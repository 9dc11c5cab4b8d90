"""Options of the Sokoban workflow: how hard the rooms are, how the world pays, how the team speaks."""

from __future__ import annotations

from dataclasses import dataclass

from agent_system.errors import AgentSystemError, suggestion
from agent_system.workflows.sokoban.prompts import STYLES

PROGRESS = ("boxes", "distance")


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
        max_moves: most moves of one turn; what follows is not made and counts as cut.
        progress: what the team is paid for on the way: boxes (best count on goals so far) | distance (least pushes left so far, by the
            lower bound of the solver).
        progress_weight: share of the team's reward that progress earns; the rest is for solving the room.
        plan_weight: local reward of a plan, times the team reward that its moves would earn.
        format_penalty: local, for a reply without readable moves.
        illegal_penalty: local, for moves that run into a wall or a blocked box, and for moves past `max_moves`.
        deadlock_penalty: local, for moves that put a box into a corner for the first time.
        deadlock_ends: a box in a corner ends the episode.
        spaced: a blank between cells of the map, so that a tokenizer makes each cell a token.
    """

    max_moves: int = 10
    progress: str = "boxes"
    progress_weight: float = 0.5
    plan_weight: float = 0.5
    format_penalty: float = 0.1
    illegal_penalty: float = 0.05
    deadlock_penalty: float = 0.1
    deadlock_ends: bool = False
    spaced: bool = False

    def __post_init__(self) -> None:
        if self.max_moves < 1:
            raise AgentSystemError(f"env.params.max_moves must be 1 or more, found {self.max_moves}")
        if self.progress not in PROGRESS:
            raise AgentSystemError(
                f"env.params.progress must be one of {', '.join(PROGRESS)}, found {self.progress!r}{suggestion(self.progress, PROGRESS)}"
            )
        if not 0.0 <= self.progress_weight <= 1.0:
            raise AgentSystemError(f"env.params.progress_weight must be 0 to 1, found {self.progress_weight:g}")
        for name in ("plan_weight", "format_penalty", "illegal_penalty", "deadlock_penalty"):
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise AgentSystemError(f"env.params.{name} must be 0 or a positive number, found {getattr(self, name):g}")


@dataclass(frozen=True)
class SokobanOptions:
    """Options under `agent.orchestra.sokoban`.

    Attributes:
        prompt_style: wording of the prompts: full | short (for models of a few million parameters).
    """

    prompt_style: str = "full"

    def __post_init__(self) -> None:
        if self.prompt_style not in STYLES:
            raise AgentSystemError(
                f"agent.orchestra.sokoban.prompt_style must be one of {', '.join(STYLES)}, "
                f"found {self.prompt_style!r}{suggestion(self.prompt_style, STYLES)}"
            )
