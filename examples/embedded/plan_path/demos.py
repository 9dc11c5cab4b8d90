"""Demonstrations of the maps by a Tool and an Executor, with the compact view.

A careful Tool looks at the cells ahead and avoids walls and cells with many visits (`walkers.careful_moves`),
and a careful Executor follows a proposal cell by cell before it decides. By habit, the Tool guesses or goes
straight towards the goal, and the Executor copies the proposal.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import cycle

from agent_system.agent import Entry
from agent_system.workflows.moves import moves_reply
from agent_system.workflows.plan_path.team import (
    PlanPathExecutorAgent,
    PlanPathOptions,
    PlanPathProposerAgent,
)
from agent_system.workflows.plan_path.world.generate import TASKS, PlanPathDifficulty, generate
from agent_system.workflows.plan_path.world.grid import MOVES, GridMap
from agent_system.workflows.plan_path.world.render import compact_text
from agent_system.workflows.plan_path.world.rules import (
    PlanPathState,
    advance,
    initial_state,
    walk,
    without_visits,
)
from agent_system.workflows.proposer_executor import TOOL
from examples.embedded.course import UNTIED, Course, Messages, World, conversation
from examples.embedded.plan_path.walkers import careful_moves, cost, habitual_moves, in_sight, random_moves


@dataclass(frozen=True)
class Habits:
    """Behaviour of the demonstrators.

    Attributes:
        tool_care: share of the Tool's proposals that take the cells ahead into account; the others go
            straight towards the goal.
        guess: share of random moves among the others.
        check: share of proposals that the Executor follows cell by cell; it copies the others.
        stray: share of moves replaced by random ones, which are not demonstrated, so that the demonstrations
            include states off the path.
        executor: share of demonstrations that are the Executor's.
        wander: maximum number of random moves before half of the episodes, so that the demonstrations include
            cells with many visits.
    """

    tool_care: float = 0.05
    guess: float = 0.85
    check: float = 0.1
    stray: float = 0.0
    executor: float = 0.5
    wander: int = 0


CAREFUL = Habits(tool_care=1.0, guess=0.0, check=1.0, stray=0.2, wander=60)


@dataclass(frozen=True)
class PlanPathCourse(Course):
    """See `Course`.

    Attributes:
        max_turns: turns of one demonstrated episode.
        radius, visits, max_moves: options of the environment (`PlanPathEnvOptions`).
    """

    count: int = 24_000
    habits: Habits = Habits()
    careful: Habits = CAREFUL
    difficulty: PlanPathDifficulty = field(default_factory=lambda: PlanPathDifficulty(wall_share=0.15))
    max_turns: int = 32
    radius: int = 2
    visits: bool = True
    max_moves: int = 2


def make_demos(course: PlanPathCourse, seed: int, exclude: Collection[str] = ()) -> list[Messages]:
    """Return the conversations of the course; none on a map whose text is in `exclude`."""
    rng = random.Random(f"plan-path-demos-{seed}")
    maps = generate(max(1, course.count // 4), 10 * seed + 7, course.difficulty, exclude=exclude)
    team = Demonstrators(course, rng)
    return course.conversations(rng, cycle(maps), lambda grid, habits: team.episode(grid, habits)[0])


def team_success(course: PlanPathCourse, habits: Habits, maps: Sequence[GridMap], seed: int = 0) -> float:
    """Return the share of `maps` on which demonstrators with `habits` reach the goal within
    `course.max_turns`.
    """
    team = Demonstrators(course, random.Random(f"plan-path-success-{seed}"))
    return sum(team.episode(grid, habits)[1] for grid in maps) / len(maps)


class Demonstrators:
    """Demonstrators of both roles in the short prompt style with the compact view."""

    def __init__(self, course: PlanPathCourse, rng: random.Random) -> None:
        options = PlanPathOptions(prompt_style="short")
        self.tool = PlanPathProposerAgent(config=options)
        self.executor = PlanPathExecutorAgent(config=options)
        self.course = course
        self.rng = rng

    def episode(self, grid: GridMap, habits: Habits) -> tuple[list[Messages], bool]:
        """Return the conversations of one episode, one per turn, and whether it reached the goal."""
        course, rng = self.course, self.rng
        state = (
            self._wandered(grid, habits.wander)
            if habits.wander and rng.random() < 0.5
            else initial_state(grid)
        )
        conversations: list[Messages] = []
        for _ in range(course.max_turns):
            if not course.visits:
                state = without_visits(state)
            proposal, plan = self._plan(grid, state, habits)
            if rng.random() < habits.executor:
                if rng.random() < habits.stray:
                    plan = random_moves(rng, course.max_moves)
                    proposal = moves_reply(plan)
                reply, moves = self._decide(grid, state, plan, habits)
                conversations.append(
                    self._conversation(self.executor, grid, state, [Entry(TOOL, proposal)], reply)
                )
            else:
                conversations.append(self._conversation(self.tool, grid, state, [], proposal))
                moves = self._decide(grid, state, plan, habits)[1]
            if rng.random() < habits.stray:
                moves = random_moves(rng, course.max_moves)
            made = walk(grid, state.cell, moves)
            state = advance(grid, state, made)
            if made.reached:
                return conversations, True
        return conversations, False

    def _wandered(self, grid: GridMap, most: int) -> PlanPathState:
        """Return a state after random moves that do not reach the goal."""
        state = initial_state(grid)
        for _ in range(self.rng.randint(1, most)):
            made = walk(grid, state.cell, self.rng.choice(tuple(MOVES)))
            if not made.reached:
                state = advance(grid, state, made)
        return state

    def _plan(self, grid: GridMap, state: PlanPathState, habits: Habits) -> tuple[str, str]:
        """Return the Tool's reply and its moves."""
        course = self.course
        if self.rng.random() < habits.tool_care:
            moves = careful_moves(grid, state, course.radius, course.max_moves)
            return f"{around(grid, state)} {moves_reply(moves)}", moves
        hasty = self.rng.random() < habits.guess
        moves = (
            random_moves(self.rng, course.max_moves)
            if hasty
            else habitual_moves(self.rng, grid, state, course.max_moves)
        )
        return moves_reply(moves), moves

    def _decide(self, grid: GridMap, state: PlanPathState, plan: str, habits: Habits) -> tuple[str, str]:
        """Return the Executor's reply and its moves."""
        if self.rng.random() < habits.check:
            return checked(grid, state, plan, self.course.radius, self.course.max_moves)
        return f"Fine. {moves_reply(plan)}", plan

    def _conversation(
        self,
        agent: PlanPathProposerAgent | PlanPathExecutorAgent,
        grid: GridMap,
        state: PlanPathState,
        entries: list[Entry],
        reply: str,
    ) -> Messages:
        course = self.course
        return conversation(
            agent, compact_text(grid, state, course.radius), reply, entries, max_moves=course.max_moves
        )


def around(grid: GridMap, state: PlanPathState) -> str:
    """Return the kind of the next cell for each move: a wall, or a cell that was entered never, once, or more
    often.
    """

    def kind(move: str) -> str:
        there = grid.after(state.cell, move)
        return "wall" if there is None else ("ok", "been", "worn")[min(state.visits[there], 2)]

    return " ".join(f"{move} {kind(move)}" for move in MOVES)


def checked(grid: GridMap, state: PlanPathState, plan: str, radius: int, max_moves: int) -> tuple[str, str]:
    """Check the visible part of a plan cell by cell; return a reply with the check and the decision, and the
    moves decided on.

    The visible part of a legal plan is kept if it costs no more than the careful moves; otherwise the careful
    moves replace it.
    """
    own = careful_moves(grid, state, radius, max_moves)
    plan = in_sight(plan, radius)
    found, own_cost = cost(grid, state, plan), cost(grid, state, own)
    steps = [
        f"{move} {'wall' if cost(grid, state, plan[: i + 1]) is None else 'ok'}"
        for i, move in enumerate(plan)
    ]
    good = found is not None and own_cost is not None and found <= own_cost
    verdict = "Good." if good else "Wall." if found is None else "Detour."
    moves = plan if good else own
    return f"{' '.join(steps)} {verdict} {moves_reply(moves)}", moves


# Maps as the generator makes them by default (20 % walls), seen without visits.
DEFAULT_MAPS = PlanPathCourse(difficulty=PlanPathDifficulty(), visits=False)
WORLD = World(PlanPathCourse(), TASKS, make_demos, size=UNTIED, courses={"default_maps": DEFAULT_MAPS})
