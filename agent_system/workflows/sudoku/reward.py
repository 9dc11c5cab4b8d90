"""What the team and its roles are paid, split as in AT-GRPO (arXiv 2510.11062): `alpha * team + local`.

Nothing can be earned by going in circles. The team is paid for the best board so far, so a cell that is emptied and filled again earns
nothing. The Tool is paid the difference between its plans (potential-based, Ng et al. 1999), so over an episode it earns what its last
plan was worth, however many plans there were. All else is a penalty. A wrong digit costs the call that writes it, since the
progress of an episode does not show what it spoils later.
"""

from __future__ import annotations

from agent_system.workflows.sudoku.options import SudokuEnvOptions
from agent_system.workflows.sudoku.state import Applied, State


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
