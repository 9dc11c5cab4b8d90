"""The world: one puzzle, several turns; the Executor writes on the board, and the solved board ends the
episode.

Rewards are split as in AT-GRPO (arXiv 2510.11062): `alpha * team + local`. Going in circles earns nothing.
The team is paid for the best board so far, so a cell that is emptied and filled again earns nothing. The Tool
is paid the difference between its plans (potential-based, Ng et al. 1999), so over an episode it earns the
value of its last plan, however many plans there were. All other terms are penalties. A wrong digit is
penalised in the call that writes it, since progress does not show its later cost.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent_system.environment import Grid, Observation, Outcome, Task, paid
from agent_system.errors import AgentSystemError
from agent_system.options import check_choice, check_floats
from agent_system.registry import EnvRegistry
from agent_system.workflows.proposer_executor import NO_PLAN, ProposerExecutorEnv
from agent_system.workflows.sudoku.world.action import action_text, parse_action
from agent_system.workflows.sudoku.world.puzzle import EMPTY, rows_text
from agent_system.workflows.sudoku.world.render import describe, digits_text
from agent_system.workflows.sudoku.world.solver import puzzle_from_text
from agent_system.workflows.sudoku.world.state import AppliedAction, SudokuState, apply_action

VIEWS = ("grid", "digits")
CLASHES = ("keep", "refuse", "clear")
NO_PROPOSAL = "none: nothing was planned"
COUNTS = ("unreadable", "illegal", "clues_touched", "clashes", "cells_cut")


@dataclass(frozen=True)
class SudokuEnvOptions:
    """Options under `env.params`.

    Attributes:
        view: the agents' observation: grid (the clues, and the board below them once something is
            written) | digits (the board alone, 0 for an empty cell).
        clashes: treatment of a digit that its row, column or box already holds: keep (it is
            written) | refuse (it is not) | clear (it is not, and the cells that hold it are emptied
            unless they are clues, which removes earlier wrong digits).
        max_cells: maximum number of cells that one action may change; later ones are left out and
            counted.
        success_reward: team reward for the solved puzzle, once.
        progress_reward: team reward for all cells right; each part of it is paid when it is reached
            for the first time.
        plan_reward: local reward of the Tool for a plan that makes all cells right; paid as the
            difference to its last plan.
        illegal_penalty: subtracted from the local reward of a call whose action cannot be read,
            touches a clue or leaves the board.
        clash_penalty: times the share of the newly written cells that clash with a row, column or
            box; subtracted likewise.
        wrong_penalty: times the share of the action's cells that it makes wrong (writes a digit
            other than the solution's, or empties a cell with the solution's); subtracted likewise.
            Unchanged cells do not count.
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
        check_floats(self)


@EnvRegistry.register("sudoku")
class SudokuEnv(ProposerExecutorEnv):
    """Environment that writes the Executor's cells, keeps the clues, and pays the team for the best
    board so far.

    The Tool's plan is the prompt variable `{proposal}`: the cells or the grid, or `none: ` and the
    reason.

    Attributes:
        state: puzzle and board, from `reset` on.

    `info`: `success`; `progress` (highest share of right open cells so far) and `right` (the
    current share);
        `unreadable`, `illegal`
    (actions stopped by a clue or the edge of the board), `clues_touched`, `clashes` (cells that
    clash, written or refused) and `cells_cut` (beyond `max_cells`) of the Executor so far; of the
    Tool likewise under `tool/`, and `tool/progress` (share of the open cells that its last plan
    would make right); `tool/failed_runs` (programs that printed no plan).
    """

    config_class = SudokuEnvOptions
    blocking = False
    needs_ground_truth = False
    plan_form = "cells and no grid"

    def reset(self, task: Task) -> Observation:
        """Start from the clues in `extra_info.puzzle`.

        Raises:
            AgentSystemError: the puzzle is missing or malformed, or has no solution or several.
        """
        text = task.extra.get("puzzle")
        if not isinstance(text, str):
            raise AgentSystemError(
                f"task {task.task_id!r} has no extra_info.puzzle (one line of digits and dots), "
                f"found {text!r:.80}; make rows with: python -m agent_system.workflows.data sudoku"
            )
        self.state = SudokuState.start(puzzle_from_text(text))
        self._best = self._plan = self.state.progress
        self._acted = False
        self._proposal = NO_PROPOSAL
        self._counts = dict.fromkeys((*COUNTS, *(f"tool/{name}" for name in (*COUNTS, "failed_runs"))), 0)
        return self.observe()

    def observe(self, agent_id: str = "") -> Observation:
        """Return the board in the format of `env.params.view`, with the Tool's plan; the same for
        every agent.
        """
        text = digits_text(self.state.board) if self.config.view == "digits" else describe(self.state)
        return Observation(text, {"anchor": self.state.key, "proposal": self._proposal})

    def step(self, action: str) -> Outcome:
        """End the turn; write `action` unless the Executor has written in this turn."""
        team = 0.0 if self._acted else self._write(str(action))[0]
        self._acted = False
        self._proposal = NO_PROPOSAL
        return Outcome(team, done=self.state.solved, info=self._info(), observation=self.observe())

    def fork(self) -> SudokuEnv:
        """Return an independent copy; boards are immutable and shared."""
        copy = type(self)(self.config, seed=self.seed)
        copy.state = self.state
        copy._best = self._best
        copy._plan = self._plan
        copy._acted = self._acted
        copy._counts = dict(self._counts)
        copy._proposal = self._proposal
        return copy

    def render(self) -> Grid:
        """Return the board: clues and written digits."""
        return Grid(
            [row.split() for row in rows_text(self.state.board).splitlines()], {EMPTY: "an empty cell"}
        )

    def _program_input(self) -> str:
        return f"{digits_text(self.state.puzzle.clues)}\n\n{digits_text(self.state.board)}\n"

    def _is_plan(self, text: str) -> bool:
        return parse_action(text, self.state.puzzle.size) is not None

    def _execute(self, action: str) -> Outcome:
        self._acted = True
        team, applied = self._write(action)
        return Outcome(
            team,
            paid(-penalty(self.config, applied), *penalties(self.config)),
            self.state.solved,
            self._info(),
        )

    def _propose(self, action: str, reason: str = NO_PLAN, failed_run: bool = False) -> Outcome:
        self._counts["tool/failed_runs"] += failed_run
        size = self.state.puzzle.size
        plan = parse_action(action, size)
        self._proposal = f"none: {reason}" if plan is None else action_text(plan, size, self.config.max_cells)
        applied = self._try(action, "tool/")
        local = plan_reward(self.config, self._plan, applied) - penalty(self.config, applied)
        self._plan = applied.state.progress
        return Outcome(local=paid(local, self.config.plan_reward, *penalties(self.config)), info=self._info())

    def _write(self, action: str) -> tuple[float, AppliedAction]:
        applied = self._try(action)
        team = team_reward(self.config, self._best, applied.state)
        self.state = applied.state
        self._best = max(self._best, applied.state.progress)
        return team, applied

    def _try(self, action: str, prefix: str = "") -> AppliedAction:
        config = self.config
        applied = apply_action(
            self.state, parse_action(action, self.state.puzzle.size), config.max_cells, config.clashes
        )
        error_counts = (
            not applied.readable,
            applied.illegal,
            applied.touched_clue,
            applied.clashes + applied.refused,
            applied.cut,
        )
        for name, count in zip(COUNTS, error_counts, strict=True):
            self._counts[prefix + name] += int(count)
        return applied

    def _info(self) -> dict[str, float]:
        state = self.state
        reached = {
            "success": state.solved,
            "progress": self._best,
            "right": state.progress,
            "tool/progress": self._plan,
        }
        return {name: float(value) for name, value in (reached | self._counts).items()}


def team_reward(options: SudokuEnvOptions, best: float, after: SudokuState) -> float:
    """Return the team reward: progress beyond `best`, the highest so far, and success.

    The episode ends when the puzzle is solved, so success is paid once, and the sum over an episode
    is at most `progress_reward + success_reward`.
    """
    return options.progress_reward * max(0.0, after.progress - best) + options.success_reward * after.solved


def penalty(options: SudokuEnvOptions, applied: AppliedAction) -> float:
    """Return the penalty of a call of either role for an action that is unreadable, illegal,
    clashing or wrong; at least 0.
    """
    wrong_form = not applied.readable or applied.illegal
    share = options.clash_penalty * applied.clash_share + options.wrong_penalty * applied.wrong_share
    return options.illegal_penalty * wrong_form + share


def penalties(options: SudokuEnvOptions) -> tuple[float, ...]:
    """Return the coefficients of `penalty`."""
    return options.illegal_penalty, options.clash_penalty, options.wrong_penalty


def plan_reward(options: SudokuEnvOptions, previous: float, applied: AppliedAction) -> float:
    """Return the Tool's reward for a plan that results in `applied`; `previous` is the progress of
    its last plan.
    """
    return options.plan_reward * (applied.state.progress - previous)
