"""Demonstrations of both roles for the warm start of a tiny model.

They first teach mostly a skill and then a habit. The skill: look at the cells ahead and leave walls and worn ways
(`walkers.careful_moves`), and follow a proposal cell by cell before the decision. The habit of the last part: the Tool mostly guesses
or goes straight for the goal, and the Executor mostly does what it is told. So the warm-started team knows how to be careful but seldom
is, and reinforcement learning, which sees no demonstration, can find out that care pays. `team_success` says how often demonstrators
with given habits arrive.

The prompts are made by the agents and the rendering of the workflow, so they are what the team reads later.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from agent_system.agent import Entry
from agent_system.workflows.plan_path.agents import TOOL, ExecutorAgent, ToolAgent
from agent_system.workflows.plan_path.generate import generate
from agent_system.workflows.plan_path.grid import MOVES, GridMap
from agent_system.workflows.plan_path.options import Difficulty, PlanPathOptions
from agent_system.workflows.plan_path.render import compact_text
from agent_system.workflows.plan_path.rules import State, advance, initial_state, walk
from agent_system.workflows.plan_path.walkers import careful_moves, cost, habitual_moves, in_sight, random_moves

Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Habits:
    """How the demonstrators work.

    Attributes:
        tool_care: share of the Tool's proposals that look at the cells ahead; the others go straight for the goal.
        guess: share of these others that are random moves instead.
        check: share of proposals that the Executor follows cell by cell; the others it takes as they are.
        stray: share of moves made at random instead, which show what to do off the way; they are never demonstrated.
        executor: share of demonstrations that are the Executor's.
        wander: most moves at random before an episode begins, which show ways that have been entered many times; half of the episodes.
    """

    tool_care: float = 0.05
    guess: float = 0.85
    check: float = 0.1
    stray: float = 0.0
    executor: float = 0.5
    wander: int = 0


CAREFUL = Habits(tool_care=1.0, guess=0.0, check=1.0, stray=0.2, wander=60)


@dataclass(frozen=True)
class Course:
    """What a warm start shows, in this order; shares of `count`.

    Attributes:
        count: demonstrations in all.
        max_turns: of one demonstrated episode.
        radius, max_moves: of the world, as in `PlanPathEnvOptions`; the view is the compact one.
        habits_from: the share after which `habits` rule; until then most are careful.
        habits_before: share of episodes by `habits` until then, so that both ways are known.
        habits: see `Habits`.
        difficulty: of the maps.
    """

    count: int = 24_000
    max_turns: int = 32
    radius: int = 2
    max_moves: int = 2
    habits_from: float = 0.75
    habits_before: float = 0.15
    habits: Habits = Habits()
    difficulty: Difficulty = field(default_factory=Difficulty)


def make_demos(course: Course, seed: int, exclude: Collection[str] = ()) -> list[Messages]:
    """Return `course.count` conversations (prompt and reply) in the order of the course; none on a map whose text is in `exclude`."""
    rng = random.Random(f"plan-path-demos-{seed}")
    maps = generate(max(1, course.count // 4), 10 * seed + 7, course.difficulty, exclude=exclude)
    turning_point = course.count * course.habits_from
    team = Demonstrators(course, rng)
    conversations: list[Messages] = []
    played = 0
    while len(conversations) < course.count:
        habitual = len(conversations) >= turning_point or rng.random() < course.habits_before
        habits = course.habits if habitual else CAREFUL
        conversations += team.episode(maps[played % len(maps)], habits)[0]
        played += 1
    return conversations[: course.count]


def team_success(course: Course, habits: Habits, maps: Sequence[GridMap], seed: int = 0) -> float:
    """Return the share of `maps` on which demonstrators with `habits` reach the goal within `course.max_turns`."""
    team = Demonstrators(course, random.Random(f"plan-path-success-{seed}"))
    return sum(team.episode(grid, habits)[1] for grid in maps) / len(maps)


class Demonstrators:
    """Plays both roles in the short prompt style on the compact view."""

    def __init__(self, course: Course, rng: random.Random) -> None:
        options = PlanPathOptions(prompt_style="short")
        self.tool = ToolAgent(config=options)
        self.executor = ExecutorAgent(config=options)
        self.course = course
        self.rng = rng

    def episode(self, grid: GridMap, habits: Habits) -> tuple[list[Messages], bool]:
        """Return the conversations of one episode, one a turn, and whether it reached the goal."""
        course, rng = self.course, self.rng
        state = self._wandered(grid, habits.wander) if habits.wander and rng.random() < 0.5 else initial_state(grid)
        conversations: list[Messages] = []
        for _ in range(course.max_turns):
            proposal, plan = self._plan(grid, state, habits)
            if rng.random() < habits.executor:
                if rng.random() < habits.stray:
                    plan = random_moves(rng, course.max_moves)
                    proposal = tagged(plan)
                reply, moves = self._decide(grid, state, plan, habits)
                conversations.append(self._conversation(self.executor, grid, state, [Entry(TOOL, proposal)], reply))
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

    def _wandered(self, grid: GridMap, most: int) -> State:
        """Return a state after moves at random that kept away from the goal."""
        state = initial_state(grid)
        for _ in range(self.rng.randint(1, most)):
            made = walk(grid, state.cell, self.rng.choice(tuple(MOVES)))
            if not made.reached:
                state = advance(grid, state, made)
        return state

    def _plan(self, grid: GridMap, state: State, habits: Habits) -> tuple[str, str]:
        """Return the Tool's reply and its moves."""
        course = self.course
        if self.rng.random() < habits.tool_care:
            moves = careful_moves(grid, state, course.radius, course.max_moves)
            return f"{around(grid, state)} {tagged(moves)}", moves
        hasty = self.rng.random() < habits.guess
        moves = random_moves(self.rng, course.max_moves) if hasty else habitual_moves(self.rng, grid, state, course.max_moves)
        return tagged(moves), moves

    def _decide(self, grid: GridMap, state: State, plan: str, habits: Habits) -> tuple[str, str]:
        """Return the Executor's reply and its moves."""
        if self.rng.random() < habits.check:
            return checked(grid, state, plan, self.course.radius, self.course.max_moves)
        return f"Fine. {tagged(plan)}", plan

    def _conversation(self, agent: ToolAgent | ExecutorAgent, grid: GridMap, state: State, said: list[Entry], reply: str) -> Messages:
        course = self.course
        variables = {
            "env_prompt": compact_text(grid, state, course.radius),
            "team_context": agent.team_context(said),
            "max_moves": course.max_moves,
            "step": 1,
            "memory": "",
        }
        return [*agent.messages(variables), {"role": "assistant", "content": reply}]


def tagged(moves: str) -> str:
    """Return moves as a reply says them, each a word of its own: `<moves>R R D</moves>`."""
    return f"<moves>{' '.join(moves)}</moves>"


def around(grid: GridMap, state: State) -> str:
    """Return what each move would meet: a wall, a free cell, one that was entered once, or one that was entered often."""

    def met(move: str) -> str:
        there = grid.after(state.cell, move)
        return "wall" if there is None else ("ok", "been", "worn")[min(state.visits[there], 2)]

    return " ".join(f"{move} {met(move)}" for move in MOVES)


def checked(grid: GridMap, state: State, plan: str, radius: int, max_moves: int) -> tuple[str, str]:
    """Follow a plan cell by cell as far as it is in sight; return what is found with the decision, and the moves decided on.

    A legal plan that costs no more than the careful way stays, without what is out of sight; otherwise the careful way replaces it.
    """
    own = careful_moves(grid, state, radius, max_moves)
    plan = in_sight(plan, radius)
    found, own_cost = cost(grid, state, plan), cost(grid, state, own)
    steps = [f"{move} {'wall' if cost(grid, state, plan[: i + 1]) is None else 'ok'}" for i, move in enumerate(plan)]
    good = found is not None and own_cost is not None and found <= own_cost
    verdict = "Good." if good else "Wall." if found is None else "Detour."
    moves = plan if good else own
    return f"{' '.join(steps)} {verdict} {tagged(moves)}", moves
