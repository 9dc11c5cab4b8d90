"""Options of the plan_path workflow: the team's, the world's, and how hard generated maps are."""

from __future__ import annotations

from dataclasses import dataclass

from agent_system.errors import AgentSystemError
from agent_system.options import check_choice, check_floats
from agent_system.workflows.plan_path.grid import LARGEST_SIDE
from agent_system.workflows.plan_path.prompts import STYLES
from agent_system.workflows.programs import check_writes_programs

VIEWS = ("grid", "compact")
TOOLS = ("moves", "code")


@dataclass(frozen=True)
class PlanPathOptions:
    """Options under `agent.orchestra.plan_path`.

    Attributes:
        prompt_style: wording of the prompts: full | short (for models of a few million parameters).
        tool: how the Tool proposes: moves (it writes them) | code (it writes a program that prints them, run in the sandbox).
    """

    prompt_style: str = "full"
    tool: str = "moves"

    def __post_init__(self) -> None:
        check_choice("agent.orchestra.plan_path.prompt_style", self.prompt_style, tuple(STYLES))
        check_choice("agent.orchestra.plan_path.tool", self.tool, TOOLS)
        check_writes_programs("agent.orchestra.plan_path", self.tool, self.prompt_style, otherwise="moves")


@dataclass(frozen=True)
class PlanPathEnvOptions:
    """Options under `env.params`.

    Attributes:
        view: what the agents see: grid (the whole map) | compact (the way to the goal and the cells straight ahead).
        radius: cells that the compact view shows in each direction.
        max_moves: moves of one turn that are made; later ones are ignored and counted.
        success_reward: team reward for reaching the goal.
        progress_reward: team reward for the whole way from start to goal, paid as the shortest distance so far falls.
        illegal_penalty: local, for a plan or an action that runs into a wall or over the edge.
        format_penalty: local, for a reply that holds no list of moves.
        shortfall_penalty: local, for moves that lead away from the goal as fast as possible; none for the best moves.
    """

    view: str = "grid"
    radius: int = 2
    max_moves: int = 4
    success_reward: float = 1.0
    progress_reward: float = 0.5
    illegal_penalty: float = 0.1
    format_penalty: float = 0.3
    shortfall_penalty: float = 0.2

    def __post_init__(self) -> None:
        check_choice("env.params.view", self.view, VIEWS)
        for name in ("radius", "max_moves"):
            if getattr(self, name) < 1:
                raise AgentSystemError(f"env.params.{name} must be 1 or more, found {getattr(self, name)}")
        check_floats(self, "env.params")


@dataclass(frozen=True)
class Difficulty:
    """How hard generated maps are.

    Attributes:
        size: rows and columns.
        wall_share: share of cells that are walls.
        min_path, max_path: least and most moves of the shortest path from start to goal.
    """

    size: int = 10
    wall_share: float = 0.2
    min_path: int = 7
    max_path: int = 18

    def __post_init__(self) -> None:
        if not 2 <= self.size <= LARGEST_SIDE:
            raise AgentSystemError(f"size must be 2 to {LARGEST_SIDE}, found {self.size}")
        if not 0 <= self.wall_share <= 0.6:
            raise AgentSystemError(f"wall_share must be 0 to 0.6 (denser maps have hardly any path), found {self.wall_share}")
        if not 1 <= self.min_path <= self.max_path or self.min_path >= self.size**2:
            raise AgentSystemError(
                f"needs 1 <= min_path <= max_path and min_path below the number of cells ({self.size**2}), "
                f"found min_path {self.min_path} and max_path {self.max_path}"
            )
