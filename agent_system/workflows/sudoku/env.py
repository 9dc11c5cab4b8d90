"""One puzzle, several turns: what the Executor writes stands, and the solved board ends the episode."""

from __future__ import annotations

from typing import Any

from agent_system.environment import BaseEnv, Observation, Outcome, Task, paid
from agent_system.errors import AgentSystemError
from agent_system.registry import EnvRegistry
from agent_system.workflows.programs import Program, run_program
from agent_system.workflows.sudoku.action import action_text, parse_action
from agent_system.workflows.sudoku.agents import EXECUTOR, TOOL
from agent_system.workflows.sudoku.options import SudokuEnvOptions
from agent_system.workflows.sudoku.render import describe, digits_text
from agent_system.workflows.sudoku.reward import penalties, penalty, plan_reward, team_reward
from agent_system.workflows.sudoku.solver import puzzle_from_text
from agent_system.workflows.sudoku.state import Applied, State, apply_action

NOBODY_SPOKE = "none: nothing was planned"
COUNTS = ("unreadable", "illegal", "clues_touched", "clashes", "cells_cut")


@EnvRegistry.register("sudoku")
class SudokuEnv(BaseEnv):
    """Writes the Executor's cells, keeps the clues, and pays the team for the best board so far.

    A Tool's action that is a `Program` is run in the sandbox, and what it prints is its plan. What the Tool plans is the prompt variable
    `{proposal}`: the cells or the grid, or `none: ` and the reason.

    Attributes:
        state: puzzle and board, from `reset` on.

    `info`: `success`; `progress` (share of the open cells that were right at best) and `right` (that are right now); `unreadable`,
    `illegal` (actions stopped by a clue or the edge of the board), `clues_touched`, `clashes` (cells that clash, written or refused) and
    `cells_cut` (beyond `max_cells`) of the Executor so far; of the Tool likewise under `tool/`, and `tool/progress` (share of the open
    cells that its last plan would make right); `tool/failed_runs` (programs that printed no plan).
    """

    config_class = SudokuEnvOptions
    blocking = False
    needs_ground_truth = False

    def reset(self, task: Task) -> Observation:
        """Start from the clues in `extra_info.puzzle`.

        Raises:
            AgentSystemError: no puzzle, a malformed one, or one that has no solution or several.
        """
        text = task.extra.get("puzzle")
        if not isinstance(text, str):
            raise AgentSystemError(
                f"task {task.task_id!r} has no extra_info.puzzle (one line of digits and dots), found {text!r:.80}; "
                "make rows with: python -m agent_system.workflows.sudoku.data"
            )
        self.state = State.start(puzzle_from_text(text))
        self._best = self._plan = self.state.progress
        self._acted = False
        self._proposal = NOBODY_SPOKE
        self._counts = dict.fromkeys((*COUNTS, *(f"tool/{name}" for name in (*COUNTS, "failed_runs"))), 0)
        return self.observe()

    def observe(self, agent_id: str = "") -> Observation:
        """Return the board as `env.params.view` shows it, with the Tool's plan; every agent sees the same."""
        text = digits_text(self.state.board) if self.config.view == "digits" else describe(self.state)
        return Observation(text, {"anchor": self.state.key, "proposal": self._proposal})

    def act(self, agent_id: str, action: str) -> Any:
        """Write what the Executor says; pay the Tool for its plan, which changes nothing. A `Program` has to be awaited."""
        if agent_id == EXECUTOR:
            self._acted = True
            team, applied = self._write(action)
            return Outcome(team, paid(-penalty(self.config, applied), *penalties(self.config)), self.state.solved, self._info())
        if agent_id == TOOL:
            return self._run(action) if isinstance(action, Program) else self._propose(action)
        return Outcome()

    def step(self, action: str) -> Outcome:
        """End the turn; `action` is written unless the Executor's call of this turn has written already."""
        team = 0.0 if self._acted else self._write(str(action))[0]
        self._acted = False
        self._proposal = NOBODY_SPOKE
        return Outcome(team, done=self.state.solved, info=self._info(), observation=self.observe())

    def fork(self) -> SudokuEnv:
        """Return an independent copy: boards never change, so they are shared."""
        copy = type(self)(self.config, seed=self.seed)
        copy.state = self.state
        copy._best, copy._plan, copy._acted = self._best, self._plan, self._acted
        copy._counts, copy._proposal = dict(self._counts), self._proposal
        return copy

    async def _run(self, program: Program) -> Outcome:
        state, size = self.state, self.state.puzzle.size
        stdin = f"{digits_text(state.puzzle.clues)}\n\n{digits_text(state.board)}\n"
        printed = await run_program(program, stdin, lambda text: parse_action(text, size) is not None, "cells and no grid")
        self._counts["tool/failed_runs"] += not printed.text
        return self._propose(printed.text, printed.why)

    def _propose(self, action: str, why: str = "the reply holds no plan") -> Outcome:
        size = self.state.puzzle.size
        plan = parse_action(action, size)
        self._proposal = f"none: {why}" if plan is None else action_text(plan, size, self.config.max_cells)
        applied = self._try(action, "tool/")
        local = plan_reward(self.config, self._plan, applied) - penalty(self.config, applied)
        self._plan = applied.state.progress
        return Outcome(local=paid(local, self.config.plan_reward, *penalties(self.config)), info=self._info())

    def _write(self, action: str) -> tuple[float, Applied]:
        applied = self._try(action)
        team = team_reward(self.config, self._best, applied.state)
        self.state = applied.state
        self._best = max(self._best, applied.state.progress)
        return team, applied

    def _try(self, action: str, prefix: str = "") -> Applied:
        config = self.config
        applied = apply_action(self.state, parse_action(action, self.state.puzzle.size), config.max_cells, config.clashes)
        found = (not applied.readable, applied.illegal, applied.touched_clue, applied.clashes + applied.refused, applied.cut)
        for name, count in zip(COUNTS, found, strict=True):
            self._counts[prefix + name] += int(count)
        return applied

    def _info(self) -> dict[str, float]:
        state = self.state
        reached = {"success": state.solved, "progress": self._best, "right": state.progress, "tool/progress": self._plan}
        return {name: float(value) for name, value in (reached | self._counts).items()}
