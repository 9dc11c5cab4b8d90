"""The world: a team walks over a map, with a few moves per turn, until it reaches the goal.

Rewards follow "Stronger-MAS" (arXiv 2510.11062): the team's success and progress, and a local term for each
role. Walking in circles earns nothing: progress is the decrease of the shortest distance so far, so an
episode earns it once, and local rewards are never positive.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from agent_system.environment import Grid, Observation, Outcome, Task, paid
from agent_system.errors import AgentSystemError
from agent_system.options import check_choice, check_floats
from agent_system.registry import EnvRegistry
from agent_system.workflows.moves import parse_moves
from agent_system.workflows.plan_path.world.grid import FREE, GOAL, WALL, GridMap, parse_map
from agent_system.workflows.plan_path.world.render import HERE, compact_text, grid_text
from agent_system.workflows.plan_path.world.rules import (
    PlanPathState,
    PlanPathWalk,
    advance,
    initial_state,
    walk,
    without_visits,
)
from agent_system.workflows.proposer_executor import NO_PLAN, ProposerExecutorEnv

VIEWS = ("grid", "compact")
NO_PROPOSAL = "none: nothing was proposed"
LEGEND = {HERE: "the team", GOAL: "the goal", WALL: "a wall", FREE: "a free cell"}


@dataclass(frozen=True)
class PlanPathEnvOptions:
    """Options under `env.params`.

    Attributes:
        view: the agents' observation: grid (the whole map) | compact (the offset of the goal and
            the cells straight ahead).
        radius: cells that the compact view shows in each direction.
        visits: the compact view counts the visits of its cells; without them every cell looks
            unvisited.
        max_moves: maximum number of moves per turn; later ones are ignored and counted.
        success_reward: team reward for reaching the goal.
        progress_reward: team reward for the whole way from start to goal, paid as the shortest
            distance so far decreases.
        illegal_penalty: local, for a plan or an action that runs into a wall or over the edge.
        format_penalty: local, for a reply without a list of moves.
        shortfall_penalty: local, for moves directly away from the goal, proportionally less for
            better ones, 0 for the best moves.
    """

    view: str = "grid"
    radius: int = 2
    visits: bool = True
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
        check_floats(self)


@EnvRegistry.register("plan_path")
class PlanPathEnv(ProposerExecutorEnv):
    """Environment that judges the Tool's moves without making them, makes the Executor's, and ends
    the episode at the goal.

    The Executor's moves are made in `act`, so that each of its candidates gets its own reward;
    `step` makes them only in a turn without an Executor (a team of one, for example). A reply
    without a list of moves makes none. The Tool's proposal is the prompt variable `{proposal}`.

    `info`: `success`; `progress` (0 to 1, best so far); `distance` (to the goal); `moves`;
    `path_ratio` (moves made / shortest path, in episodes that reach the goal); `tool/illegal`,
    `executor/illegal` (lists that ran into a wall or over the edge), `tool/unparsed`,
    `executor/unparsed` (replies without a list), `tool/surplus`, `executor/surplus` (moves beyond
    `max_moves`), `tool/failed_runs` (programs that did not print a list of moves), all counted over
    the episode; `executor/followed` (its last moves equal the proposal).
    """

    config_class = PlanPathEnvOptions
    blocking = False
    needs_ground_truth = False

    def reset(self, task: Task) -> Observation:
        """Start on the map of `task.extra["map"]`, or of the task's prompt when that is missing.

        Raises:
            AgentSystemError: the map is malformed or cannot be solved; the message names the task.
        """
        try:
            self._grid = parse_map(str(task.extra.get("map") or task.prompt))
        except AgentSystemError as error:
            raise AgentSystemError(f"task {task.task_id!r}, extra_info.map: {error}") from error
        self._state = initial_state(self._grid)
        self._counts: Counter[str] = Counter()
        self._moved = False
        self._followed = False
        self._proposal = NO_PROPOSAL
        self._observation = self._make_observation()
        return self._observation

    @property
    def grid(self) -> GridMap:
        """The map of the episode."""
        return self._grid

    @property
    def state(self) -> PlanPathState:
        """Current state of the episode."""
        return self._state

    def observe(self, agent_id: str) -> Observation:
        """Return the observation at the start of the turn, with the Tool's proposal."""
        return replace(self._observation, info={**self._observation.info, "proposal": self._proposal})

    def step(self, action: str) -> Outcome:
        """End the turn; moves that the Executor has already made are not made again."""
        outcome = Outcome(info=self._info(), done=self._arrived) if self._moved else self._execute(action)
        self._moved = False
        self._proposal = NO_PROPOSAL
        self._observation = self._make_observation()
        return replace(outcome, local=None, observation=self._observation)

    def fork(self) -> PlanPathEnv:
        """Return an independent copy; map and state are immutable and shared."""
        copy = type(self)(self.config, seed=self.seed)
        copy._grid = self._grid
        copy._state = self._state
        copy._moved = self._moved
        copy._counts = self._counts.copy()
        copy._followed = self._followed
        copy._proposal = self._proposal
        copy._observation = self._observation
        return copy

    def render(self) -> Grid:
        """Return the map with the team on it."""
        return Grid(grid_text(self._grid, self._state).splitlines()[: self._grid.height], LEGEND)

    @property
    def _arrived(self) -> bool:
        return self._state.cell == self._grid.goal

    def _program_input(self) -> str:
        return "".join(
            f"{row}\n" for row in grid_text(self._grid, self._state).splitlines()[: self._grid.height]
        )

    def _propose(self, action: str, reason: str = NO_PLAN, failed_run: bool = False) -> Outcome:
        self._counts["tool/failed_runs"] += failed_run
        agent_walk = self._try(action, "tool")
        self._proposal = f"none: {reason}" if agent_walk is None else ", ".join(self._first(action))
        return Outcome(
            local=self._paid(local_reward(self._grid, self._state.cell, agent_walk, self.config)),
            info=self._info(),
        )

    def _execute(self, action: str) -> Outcome:
        before = self._state
        self._moved = True
        agent_walk = self._try(action, "executor")
        self._followed = agent_walk is not None and ", ".join(self._first(action)) == self._proposal
        if agent_walk is not None:
            self._state = advance(self._grid, before, agent_walk)
        team = team_reward(self._grid, before, self._state, self.config)
        local = self._paid(local_reward(self._grid, before.cell, agent_walk, self.config))
        return Outcome(team=team, local=local, done=self._arrived, info=self._info())

    def _paid(self, local: float) -> float | None:
        return paid(
            local, self.config.format_penalty, self.config.illegal_penalty, self.config.shortfall_penalty
        )

    def _try(self, action: str, role: str) -> PlanPathWalk | None:
        """Count the errors of an action and return its walk; None when it is not a list of moves."""
        moves = parse_moves(action)
        if moves is None:
            self._counts[f"{role}/unparsed"] += 1
            return None
        agent_walk = walk(self._grid, self._state.cell, moves[: self.config.max_moves])
        self._counts[f"{role}/illegal"] += agent_walk.illegal
        self._counts[f"{role}/surplus"] += max(0, len(moves) - self.config.max_moves)
        return agent_walk

    def _first(self, action: str) -> str:
        """Return the first `max_moves` moves of an action, as letters."""
        return (parse_moves(action) or "")[: self.config.max_moves]

    def _make_observation(self) -> Observation:
        config = self.config
        compact = config.view == "compact"
        visible_state = self._state if config.visits else without_visits(self._state)
        text = (
            compact_text(self._grid, visible_state, config.radius)
            if compact
            else grid_text(self._grid, self._state)
        )
        return Observation(
            text, {"anchor": grid_text(self._grid, self._state), "max_moves": config.max_moves}
        )

    def _info(self) -> dict[str, float]:
        grid = self._grid
        state = self._state
        info = {
            "success": float(self._arrived),
            "progress": 1 - state.best / max(1, grid.shortest),
            "distance": float(grid.distances[state.cell]),
            "moves": float(state.moves),
            "tool/failed_runs": float(self._counts["tool/failed_runs"]),
            "executor/followed": float(self._followed),
        }
        for role in ("tool", "executor"):
            info |= {
                f"{role}/{name}": float(self._counts[f"{role}/{name}"])
                for name in ("illegal", "unparsed", "surplus")
            }
        if self._arrived:
            info["path_ratio"] = state.moves / grid.shortest
        return info


def team_reward(
    grid: GridMap, before: PlanPathState, after: PlanPathState, options: PlanPathEnvOptions
) -> float:
    """Return the team reward for going from `before` to `after`.

    progress_reward * (best before - best after) / shortest path, plus success_reward on arrival.
    The sum over an episode is at most `progress_reward + success_reward`.
    """
    progress = (before.best - after.best) / max(1, grid.shortest)
    arrived = after.cell == grid.goal and before.cell != grid.goal
    return options.progress_reward * progress + options.success_reward * arrived


def local_reward(
    grid: GridMap, cell: int, agent_walk: PlanPathWalk | None, options: PlanPathEnvOptions
) -> float:
    """Return the local reward of one call for moves from `cell`, proposed or made; at most 0.

    Args:
        agent_walk: the walk of the moves; None when the reply held no list of moves.
    """
    if agent_walk is None:
        return -options.format_penalty - options.shortfall_penalty
    return -options.illegal_penalty * agent_walk.illegal - options.shortfall_penalty * shortfall(
        grid, cell, agent_walk, options.max_moves
    )


def shortfall(grid: GridMap, cell: int, agent_walk: PlanPathWalk, max_moves: int) -> float:
    """Return the shortfall against the best moves, in [0, 1]: 0 on a shortest path, 1/2 for no
    progress, 1 directly away from the goal.
    """
    possible = min(max_moves, grid.distances[cell])
    gained = grid.distances[cell] - grid.distances[agent_walk.end]
    return min(1.0, (possible - gained) / (2 * possible)) if possible else 0.0
