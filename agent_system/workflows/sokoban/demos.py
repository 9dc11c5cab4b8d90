"""Demonstrations of both roles for the warm start of tiny models.

They first teach mostly a skill and then a habit. The skill: the solver's next moves, and an Executor that makes good plans and mends
bad ones. The habit of the last part: the Tool agent mostly says which way the box has to go and forgets that the player must stand
behind it; the Executor mostly makes what it is told. So the warm-started team can solve rooms but often does not, and
reinforcement learning can find out that care pays.

The prompts are made by the agents and the environment of the workflow, so they are what the team reads later.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from agent_system.agent import Entry
from agent_system.errors import AgentSystemError
from agent_system.workflows.sokoban.agents import TOOL, ExecutorAgent, SokobanAgent, ToolAgent, moves_reply
from agent_system.workflows.sokoban.generate import Puzzle, generate
from agent_system.workflows.sokoban.options import Difficulty, SokobanEnvOptions, SokobanOptions
from agent_system.workflows.sokoban.rules import MOVES, Room, State, is_solved, move, render, walk
from agent_system.workflows.sokoban.solver import push_distances, solve

Messages = list[dict[str, str]]


def _check_shares(**shares: float) -> None:
    for name, share in shares.items():
        if not 0.0 <= share <= 1.0:
            raise AgentSystemError(f"{name} is a share and must be 0 to 1, found {share:g}")


@dataclass(frozen=True)
class Habits:
    """How often the demonstrators take care.

    Attributes:
        plan: share of the Tool agent's plans that are the solver's moves; the others are hurried.
        check: share of the Executor's replies that mend a bad plan; the others make the plan whatever it is.
    """

    plan: float = 0.1
    check: float = 0.1

    def __post_init__(self) -> None:
        _check_shares(plan=self.plan, check=self.check)


CAREFUL = Habits(plan=1.0, check=1.0)


@dataclass(frozen=True)
class Course:
    """What a warm start shows, in this order; shares of `count`.

    Attributes:
        count: demonstrations in all.
        rooms: different rooms that they are about.
        difficulty: of the rooms.
        habits_from: the share after which `habits` rule; until then most are careful.
        habits_before: share of demonstrations by `habits` until then, so that both ways are known apart by role.
        habits: see `Habits`.
        executor: share of demonstrations that are the Executor's.
        bad_plans: share of hurried plans among those that the Executor is shown.
        midway: share of demonstrations that begin inside a room's solution, or a few steps off it.
    """

    count: int = 20_000
    rooms: int = 2000
    difficulty: Difficulty = field(default_factory=Difficulty)
    habits_from: float = 0.75
    habits_before: float = 0.15
    habits: Habits = Habits()
    executor: float = 0.5
    bad_plans: float = 0.5
    midway: float = 0.4

    def __post_init__(self) -> None:
        names = ("habits_from", "habits_before", "executor", "bad_plans", "midway")
        _check_shares(**{name: getattr(self, name) for name in names})


def make_demos(course: Course, seed: int, env: SokobanEnvOptions, exclude: frozenset[str] = frozenset()) -> list[Messages]:
    """Return `course.count` conversations (prompt and reply) in the order of the course; none about a room with a key in `exclude`."""
    rng = random.Random(f"sokoban-demos-{seed}")
    puzzles = generate(min(course.rooms, course.count), 10 * seed + 7, course.difficulty, exclude=exclude)
    demonstrators = Demonstrators(env)
    turning_point = course.count * course.habits_from
    conversations = []
    for i in range(course.count):
        puzzle = rng.choice(puzzles)
        state = pick_state(rng, puzzle) if rng.random() < course.midway else puzzle.start
        habitual = i >= turning_point or rng.random() < course.habits_before
        habits = course.habits if habitual else CAREFUL
        if rng.random() < course.executor:
            conversations.append(demonstrators.executor_demo(rng, puzzle.room, state, habits, course.bad_plans))
        else:
            conversations.append(demonstrators.tool_demo(rng, puzzle.room, state, habits))
    return conversations


class Demonstrators:
    """Makes conversations of either role in the short prompt style, of rooms as the environment with options `env` shows them."""

    def __init__(self, env: SokobanEnvOptions) -> None:
        self._env = env
        options = SokobanOptions(prompt_style="short")
        self._tool, self._executor = ToolAgent(config=options), ExecutorAgent(config=options)

    def tool_demo(self, rng: random.Random, room: Room, state: State, habits: Habits) -> Messages:
        """Return one conversation of the Tool agent."""
        careful = rng.random() < habits.plan
        moves = solver_moves(room, state, self._env.max_moves) if careful else hurried_moves(rng, room, state, self._env.max_moves)
        return self._conversation(self._tool, room, state, [], moves)

    def executor_demo(self, rng: random.Random, room: Room, state: State, habits: Habits, bad_plans: float) -> Messages:
        """Return one conversation of the Executor, about a plan that is hurried with probability `bad_plans`."""
        limit = self._env.max_moves
        plan = hurried_moves(rng, room, state, limit) if rng.random() < bad_plans else solver_moves(room, state, limit)
        mend = rng.random() < habits.check and not is_good_plan(room, state, plan)
        entries = [Entry(TOOL, moves_reply(plan), plan)]
        return self._conversation(self._executor, room, state, entries, solver_moves(room, state, limit) if mend else plan)

    def _conversation(self, agent: SokobanAgent, room: Room, state: State, entries: Sequence[Entry], moves: str) -> Messages:
        shown = render(room, state, spaced=self._env.spaced)
        variables = {"env_prompt": shown, "team_context": agent.team_context(entries), "step": 1, "memory": ""}
        return [*agent.messages(variables), {"role": "assistant", "content": moves_reply(moves)}]


def pick_state(rng: random.Random, puzzle: Puzzle) -> State:
    """Return a state of `puzzle` that is not solved and can be: a part of its solution made, then up to three steps at random."""
    room, state = puzzle.room, puzzle.start
    for after in walk(room, state, puzzle.solution.moves[: rng.randrange(len(puzzle.solution.moves))]).states:
        state = after
    for _ in range(rng.randint(0, 3)):
        after_step = move(room, state, rng.choice(MOVES))
        if after_step is not None and not is_solved(room, after_step) and solve(room, after_step).solution is not None:
            state = after_step
    return state


def solver_moves(room: Room, state: State, limit: int) -> str:
    """Return the first `limit` moves of the solver, or hurried ones where it finds none."""
    solution = solve(room, state).solution
    return solution.moves[:limit] if solution is not None else hurried_moves(random.Random(0), room, state, limit)


def hurried_moves(rng: random.Random, room: Room, state: State, limit: int) -> str:
    """Return the way of one box to its nearest goal, as if the player stood behind it; at most `limit` moves and at least one."""
    distances = push_distances(room)
    box = rng.choice(sorted(state.boxes - room.goals) or sorted(state.boxes))
    moves = ""
    while len(moves) < limit and distances.get(box, 0) > 0:
        nearer = [letter for letter in MOVES if distances.get(box + room.step_of(letter), distances[box]) < distances[box]]
        moves += rng.choice(nearer)
        box += room.step_of(moves[-1])
    return moves or rng.choice(MOVES)


def is_good_plan(room: Room, state: State, plan: str) -> bool:
    """Whether a plan can be carried out and needs no more pushes, to its end and from there, than the best one."""
    made = walk(room, state, plan)
    before = solve(room, state).solution
    after = solve(room, made.states[-1]).solution if made.states else before
    if made.illegal or before is None or after is None:
        return False
    return made.pushes > 0 and made.pushes + after.pushes <= before.pushes
