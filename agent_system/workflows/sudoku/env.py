"""One puzzle, several turns: what the Executor writes stands, and the solved board ends the episode.

Rewards are split as in AT-GRPO (arXiv 2510.11062): `alpha * team + local`. Nothing can be earned by going in circles. The team is paid for
the best board so far, so a cell that is emptied and filled again earns nothing. The Tool is paid the difference between its plans
(potential-based, Ng et al. 1999), so over an episode it earns what its last plan was worth, however many plans there were. All else is a
penalty. A wrong digit costs the call that writes it, since the progress of an episode does not show what it spoils later.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from agent_system.environment import BaseEnv, Observation, Outcome, Task, paid
from agent_system.errors import AgentSystemError
from agent_system.options import check_choice
from agent_system.registry import EnvRegistry
from agent_system.workflows.programs import Program, run_program
from agent_system.workflows.proposer_executor import EXECUTOR, TOOL
from agent_system.workflows.sudoku.world.action import action_text, parse_action
from agent_system.workflows.sudoku.world.render import describe, digits_text
from agent_system.workflows.sudoku.world.solver import puzzle_from_text
from agent_system.workflows.sudoku.world.state import Applied, State, apply_action

VIEWS = ("grid", "digits")
CLASHES = ("keep", "refuse", "clear")
NOBODY_SPOKE = "none: nothing was planned"
COUNTS = ("unreadable", "illegal", "clues_touched", "clashes", "cells_cut")


@dataclass(frozen=True)
class SudokuEnvOptions:
    """Options under `env.params`.

    Attributes:
        view: what the agents see: grid (the clues, and the board below them once something is written) | digits (the board alone, 0 where
            it is empty).
        clashes: what becomes of a digit that its row, column or box holds already: keep (it is written) | refuse (it is not) |
            clear (it is not, and the cells that hold it are emptied, but for clues: a wrong digit that is in the way goes again).
        max_cells: most cells that one action may change; what follows them is left out and counted.
        success_reward: team reward for the solved puzzle, once.
        progress_reward: team reward for all cells right; each part of it is paid when it is reached for the first time.
        plan_reward: local reward of the Tool for a plan that makes all cells right; paid as the difference to its last plan.
        illegal_penalty: subtracted from the local reward of a call whose action cannot be read, touches a clue or leaves the board.
        clash_penalty: times the share of the cells given a digit that clash with a row, column or box, subtracted likewise.
        wrong_penalty: times the share of the action's cells that it makes wrong (another digit than the solution's, or the solution's
            taken away), subtracted likewise; cells left as they were do not count.
    """

    view: str = "grid"
    clashes: str = "keep"
    max_cells: int = 81
    success_reward: float = 1.0
    progress_reward: float = 0.5
    plan_reward: float = 0.5
    illegal_penalty: float = 0.1
    clash_penalty: float = 0.1
    wrong_penalty: float = 0.3

    def __post_init__(self) -> None:
        check_choice("env.params.view", self.view, VIEWS)
        check_choice("env.params.clashes", self.clashes, CLASHES)
        if self.max_cells < 1:
            raise AgentSystemError(f"env.params.max_cells must be 1 or more, found {self.max_cells}")
        for field in fields(self):
            if isinstance(getattr(self, field.name), float) and not getattr(self, field.name) >= 0:
                raise AgentSystemError(f"env.params.{field.name} must be 0 or more, found {getattr(self, field.name):g}")


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
                "make rows with: python -m agent_system.workflows.data sudoku"
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


def team_reward(options: SudokuEnvOptions, best: float, after: State) -> float:
    """Return the progress beyond `best`, the highest before, and the success; at most `progress_reward + success_reward` an episode.

    An episode is over once the puzzle is solved, so success is paid once.
    """
    return options.progress_reward * max(0.0, after.progress - best) + options.success_reward * after.solved


def penalty(options: SudokuEnvOptions, applied: Applied) -> float:
    """Return what a call of either role loses for an action that is unreadable, illegal, clashes or is wrong; at least 0."""
    wrong_form = not applied.readable or applied.illegal
    share = options.clash_penalty * applied.clash_share + options.wrong_penalty * applied.wrong_share
    return options.illegal_penalty * wrong_form + share


def penalties(options: SudokuEnvOptions) -> tuple[float, ...]:
    """Return the coefficients of `penalty`."""
    return options.illegal_penalty, options.clash_penalty, options.wrong_penalty


def plan_reward(options: SudokuEnvOptions, previous: float, applied: Applied) -> float:
    """Return what the Tool gains by a plan that leads to `applied`, where its last plan led to the progress `previous`."""
    return options.plan_reward * (applied.state.progress - previous)
