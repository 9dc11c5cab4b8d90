"""What moves earn, after the rewards of Stronger-MAS (arXiv 2510.11062): the team for success and progress, each role for its own reply.

Nothing can be earned by going in circles. Progress is paid as it beats the best of the episode so far: a box pushed off its goal and on
again pays no second time. Moves that lose the room gain nothing, whatever they pass on the way. The Tool is paid the difference between
its plans, or to what has been made meanwhile where that is more, so that over an episode it earns at most what its last plan was worth,
however often it says it. All else is a penalty. The team's rewards of an episode add up to at most 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agent_system.workflows.sokoban.options import SokobanEnvOptions
from agent_system.workflows.sokoban.rules import Room, State, Walk, boxes_on_goals, is_solved, walk
from agent_system.workflows.sokoban.solver import is_lost, least_pushes, solve


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one reply's moves lead to.

    Attributes:
        walk: the moves made.
        state: where they end.
        best: best progress of the episode after them, 0 to 1.
        worth: what an episode that ends here has earned the team, 0 to 1.
        team: team reward: what of it is new.
        penalty: local reward of what is wrong with the moves, 0 or less.
        solved, deadlock: of `state`.
        unparsable: there were no readable moves.
        cut: moves past the limit.
    """

    walk: Walk
    state: State
    best: float
    worth: float
    team: float
    penalty: float
    solved: bool
    deadlock: bool
    unparsable: bool
    cut: int


def progress(room: Room, start: State, state: State, kind: str) -> float:
    """Return how far `state` is from nothing (0) to solved (1): share of boxes on goals, or of the pushes from `start` saved."""
    if kind == "boxes":
        return boxes_on_goals(room, state) / len(room.goals)
    return max(0.0, 1.0 - least_pushes(room, state.boxes) / max(1, least_pushes(room, start.boxes)))


def best_progress(room: Room, start: State, states: Iterable[State], kind: str, best: float) -> float:
    """Return the best progress among `states`, at least `best`."""
    return max([best, *(progress(room, start, state, kind) for state in states)])


def judge(room: Room, start: State, state: State, best: float, moves: str | None, options: SokobanEnvOptions) -> Verdict:
    """Say what `moves` lead to from `state`, without changing anything.

    Args:
        room: walls and goals.
        start: where the episode began.
        state: where the moves begin.
        best: best progress of the episode so far.
        moves: letters U D L R; None when there was nothing to read.
        options: weights and limits.
    """
    asked = moves or ""
    made = walk(room, state, asked[: options.max_moves])
    end = made.states[-1] if made.states else state
    solved, deadlock = is_solved(room, end), is_lost(room, end)
    cut = 0 if solved or made.illegal else max(0, len(asked) - options.max_moves)
    after = best if deadlock else best_progress(room, start, made.states, options.progress, best)
    worth = options.progress_weight * after + (1.0 - options.progress_weight) * solved
    penalty = (
        options.format_penalty * (moves is None)
        + options.illegal_penalty * (made.illegal or cut > 0)
        + options.deadlock_penalty * (deadlock and not is_lost(room, state))
        + (
            options.shortfall_penalty * shortfall(room, state, None if moves is None else made, options)
            if options.shortfall_penalty
            else 0.0
        )
    )
    team = worth - options.progress_weight * best
    return Verdict(made, end, after, worth, team, -penalty, solved, deadlock, moves is None, cut)


def penalties(options: SokobanEnvOptions) -> tuple[float, ...]:
    """Return the coefficients of what is wrong with moves."""
    return options.format_penalty, options.illegal_penalty, options.deadlock_penalty, options.shortfall_penalty


def shortfall(room: Room, state: State, made: Walk | None, options: SokobanEnvOptions) -> float:
    """Return how far moves from `state` fall behind as many of the solver's as fit into a turn, as a share from 0 to 1.

    0 for moves that bring the end as near, 1/2 for none or for a way that leads nowhere, 1 for as many that lead back, for a room that
    cannot be solved any more, and for a reply without readable moves (`made` is None). 0 where no solution is known to begin with.
    """
    before = solve(room, state).solution
    if before is None:
        return 0.0
    if made is None:
        return 1.0
    search = solve(room, made.states[-1] if made.states else state)
    if search.solution is None:
        return 1.0 if search.exhausted else 0.5
    most = min(options.max_moves, len(before.moves))
    gained = len(before.moves) - len(search.solution.moves)
    return min(1.0, max(0.0, (most - gained) / (2 * most)))
