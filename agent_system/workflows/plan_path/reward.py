"""The rewards, after "Stronger-MAS" (arXiv 2510.11062): the team's success and progress, and a local term for each role.

Nothing here pays for walking in circles. Progress is paid on the shortest distance so far, so an episode earns it once, and what
concerns one call alone is never positive: there is nothing to collect by staying.
"""

from __future__ import annotations

from agent_system.workflows.plan_path.grid import GridMap
from agent_system.workflows.plan_path.options import PlanPathEnvOptions
from agent_system.workflows.plan_path.rules import State, Walk


def team_reward(grid: GridMap, before: State, after: State, options: PlanPathEnvOptions) -> float:
    """Return what the team earns for going from `before` to `after`.

    progress_reward * (best before - best after) / shortest path, and success_reward on arrival. Over an episode it sums up to
    `progress_reward + success_reward` at most.
    """
    progress = (before.best - after.best) / max(1, grid.shortest)
    arrived = after.cell == grid.goal and before.cell != grid.goal
    return options.progress_reward * progress + options.success_reward * arrived


def local_reward(grid: GridMap, cell: int, made: Walk | None, options: PlanPathEnvOptions) -> float:
    """Return what one call earns for moves from `cell`, proposed or made: 0 at best.

    Args:
        made: where the moves lead; None when the reply held no list of moves.
    """
    if made is None:
        return -options.format_penalty - options.shortfall_penalty
    return -options.illegal_penalty * made.illegal - options.shortfall_penalty * shortfall(grid, cell, made, options.max_moves)


def shortfall(grid: GridMap, cell: int, made: Walk, max_moves: int) -> float:
    """Return how far moves fall behind the best ones: 0 for a shortest way, 1/2 for no progress, 1 for the way back."""
    possible = min(max_moves, grid.distances[cell])
    gained = grid.distances[cell] - grid.distances[made.end]
    return min(1.0, (possible - gained) / (2 * possible)) if possible else 0.0
