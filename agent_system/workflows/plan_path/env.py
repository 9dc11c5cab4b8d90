"""The world: a team walks over a map, a few moves a turn, until it stands on the goal."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from agent_system.environment import BaseEnv, Observation, Outcome, Task, paid
from agent_system.errors import AgentSystemError
from agent_system.registry import EnvRegistry
from agent_system.workflows.plan_path.agents import EXECUTOR, TOOL
from agent_system.workflows.plan_path.grid import GridMap, parse_map
from agent_system.workflows.plan_path.options import PlanPathEnvOptions
from agent_system.workflows.plan_path.render import compact_text, grid_text
from agent_system.workflows.plan_path.reward import local_reward, team_reward
from agent_system.workflows.plan_path.rules import State, Walk, advance, initial_state, parse_moves, walk
from agent_system.workflows.programs import Program, run_program

NOBODY_SPOKE = "none: nothing was proposed"


@EnvRegistry.register("plan_path")
class PlanPathEnv(BaseEnv):
    """Judges the Tool's moves without making them, makes the Executor's, and ends the episode at the goal.

    The Executor's moves are made in `act`, so that its candidates can be told apart one by one; `step` makes them only where no
    Executor spoke in the turn (a team of one, say). A reply without a list of moves makes none. A Tool's action that is a `Program` is
    run in the sandbox, and what it prints is judged. What the Tool proposed is the prompt variable `{proposal}`.

    `info`: `success`; `progress` (0 to 1, best so far); `distance` (to the goal); `moves`; `path_ratio` (moves made over the shortest
    path, of episodes that arrive); `tool/illegal`, `executor/illegal` (lists that ran into a wall or over the edge), `tool/unparsed`,
    `executor/unparsed` (replies without a list), `tool/surplus`, `executor/surplus` (moves beyond `max_moves`), `tool/failed_runs`
    (programs that did not print a list of moves), all counted over the episode; `executor/followed` (its last moves are the proposed
    ones).
    """

    config_class = PlanPathEnvOptions
    blocking = False
    needs_ground_truth = False

    def reset(self, task: Task) -> Observation:
        """Start on the map of `task.extra["map"]`, or the task's prompt where there is none.

        Raises:
            AgentSystemError: no legal map, or one that cannot be solved; the message names the task.
        """
        try:
            self._grid = parse_map(str(task.extra.get("map") or task.prompt))
        except AgentSystemError as error:
            raise AgentSystemError(f"task {task.task_id!r}, extra_info.map: {error}") from error
        self._state = initial_state(self._grid)
        self._counts: Counter[str] = Counter()
        self._moved = False
        self._followed = False
        self._proposal = NOBODY_SPOKE
        self._seen = self._look()
        return self._seen

    @property
    def grid(self) -> GridMap:
        """The map of the episode."""
        return self._grid

    @property
    def state(self) -> State:
        """Where the episode stands."""
        return self._state

    def observe(self, agent_id: str) -> Observation:
        """Return what the turn started from, with the Tool's proposal."""
        return replace(self._seen, info={**self._seen.info, "proposal": self._proposal})

    def act(self, agent_id: str, action: str) -> Any:
        """Judge the Tool's proposal, or make the Executor's moves. A `Program` has to be awaited: it is run before it is judged."""
        if agent_id == EXECUTOR:
            return self._move(action)
        if agent_id == TOOL:
            return self._run(action) if isinstance(action, Program) else self._propose(action)
        return Outcome()

    def step(self, action: str) -> Outcome:
        """End the turn; moves that the Executor has made already are not made again."""
        made = Outcome(info=self._info(), done=self._arrived) if self._moved else self._move(action)
        self._moved = False
        self._proposal = NOBODY_SPOKE
        self._seen = self._look()
        return replace(made, local=None, observation=self._seen)

    def fork(self) -> PlanPathEnv:
        """Return a copy that goes its own way; map and state are immutable and shared."""
        copy = type(self)(self.config, seed=self.seed)
        copy._grid, copy._state, copy._moved = self._grid, self._state, self._moved
        copy._counts, copy._followed = self._counts.copy(), self._followed
        copy._proposal, copy._seen = self._proposal, self._seen
        return copy

    @property
    def _arrived(self) -> bool:
        return self._state.cell == self._grid.goal

    async def _run(self, program: Program) -> Outcome:
        rows = grid_text(self._grid, self._state).splitlines()[: self._grid.height]
        printed = await run_program(
            program, "".join(f"{row}\n" for row in rows), lambda text: parse_moves(text) is not None, "list of moves"
        )
        self._counts["tool/failed_runs"] += not printed.text
        return self._propose(printed.text, printed.why)

    def _propose(self, action: str, why: str = "the reply holds no plan") -> Outcome:
        made = self._try(action, "tool")
        self._proposal = f"none: {why}" if made is None else ", ".join(self._first(action))
        return Outcome(local=self._paid(local_reward(self._grid, self._state.cell, made, self.config)), info=self._info())

    def _move(self, action: str) -> Outcome:
        before, self._moved = self._state, True
        made = self._try(action, "executor")
        self._followed = made is not None and ", ".join(self._first(action)) == self._proposal
        if made is not None:
            self._state = advance(self._grid, before, made)
        team = team_reward(self._grid, before, self._state, self.config)
        local = self._paid(local_reward(self._grid, before.cell, made, self.config))
        return Outcome(team=team, local=local, done=self._arrived, info=self._info())

    def _paid(self, local: float) -> float | None:
        return paid(local, self.config.format_penalty, self.config.illegal_penalty, self.config.shortfall_penalty)

    def _try(self, action: str, role: str) -> Walk | None:
        """Count what is wrong with an action and return where it leads; None when it is no list of moves."""
        moves = parse_moves(action)
        if moves is None:
            self._counts[f"{role}/unparsed"] += 1
            return None
        made = walk(self._grid, self._state.cell, moves[: self.config.max_moves])
        self._counts[f"{role}/illegal"] += made.illegal
        self._counts[f"{role}/surplus"] += max(0, len(moves) - self.config.max_moves)
        return made

    def _first(self, action: str) -> str:
        """The moves of an action that count, as letters."""
        return (parse_moves(action) or "")[: self.config.max_moves]

    def _look(self) -> Observation:
        config = self.config
        compact = config.view == "compact"
        text = compact_text(self._grid, self._state, config.radius) if compact else grid_text(self._grid, self._state)
        return Observation(text, {"anchor": grid_text(self._grid, self._state), "max_moves": config.max_moves})

    def _info(self) -> dict[str, float]:
        grid, state = self._grid, self._state
        info = {
            "success": float(self._arrived),
            "progress": 1 - state.best / max(1, grid.shortest),
            "distance": float(grid.distances[state.cell]),
            "moves": float(state.moves),
            "tool/failed_runs": float(self._counts["tool/failed_runs"]),
            "executor/followed": float(self._followed),
        }
        for role in ("tool", "executor"):
            info |= {f"{role}/{name}": float(self._counts[f"{role}/{name}"]) for name in ("illegal", "unparsed", "surplus")}
        if self._arrived:
            info["path_ratio"] = state.moves / grid.shortest
        return info
