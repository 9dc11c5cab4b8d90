"""The rooms: a Tool and an Executor, on the compact view.

With care a reply says which way the box goes next and where the player must stand for it, and makes the solver's moves:

    box U from D 1 R 1
    <moves>D R U</moves>

By habit it holds the moves alone: the Tool's are drawn at random, the Executor makes what it is told. So the first token chooses the way of
working. Care is shown from states off the good way too, so that what a guess leads to is nothing new.

The first tokens are `box` and `<` because both stand elsewhere as well. Where the tiny model ties its embeddings, words that only ever
compete at one place (`Care` and `Guess`, say) come to have nearly the same one: what follows could not be told apart.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from agent_system.agent import Entry
from agent_system.errors import AgentSystemError
from agent_system.workflows.moves import moves_reply
from agent_system.workflows.proposer_executor import TOOL
from agent_system.workflows.sokoban.env import SokobanEnvOptions
from agent_system.workflows.sokoban.team import ExecutorAgent, SokobanOptions, ToolAgent
from agent_system.workflows.sokoban.world.generate import TASKS, Difficulty, Puzzle, generate
from agent_system.workflows.sokoban.world.rules import MOVES, Room, State, is_solved, move, walk
from agent_system.workflows.sokoban.world.solver import is_lost, solve
from agent_system.workflows.sokoban.world.view import shown, way
from examples.embedded.course import UNTIED, Course, Messages, World, conversation


def _check_shares(**shares: float) -> None:
    for name, share in shares.items():
        if not 0.0 <= share <= 1.0:
            raise AgentSystemError(f"{name} is a share and must be 0 to 1, found {share:g}")


@dataclass(frozen=True)
class Habits:
    """How often the demonstrators take care.

    Attributes:
        plan: share of the Tool agent's plans that are the solver's; the others are guesses.
        check: share of the Executor's replies that work the moves out again; the others make the plan whatever it is.
    """

    plan: float = 0.2
    check: float = 0.2

    def __post_init__(self) -> None:
        _check_shares(plan=self.plan, check=self.check)


CAREFUL = Habits(plan=1.0, check=1.0)


@dataclass(frozen=True)
class SokobanCourse(Course):
    """See `Course`.

    Attributes:
        rooms: different rooms that the demonstrations are about.
        executor: share of demonstrations that are the Executor's.
        bad_plans: share of guesses among the plans that a careful Executor is shown.
        midway: share of demonstrations that begin inside a room's solution.
        wander: most moves at random that lead off it there.
        env: what the agents see, and most moves of a turn.
    """

    count: int = 36_000
    habits: Habits = Habits()
    careful: Habits = CAREFUL
    habits_from: float = 0.8
    difficulty: Difficulty = field(default_factory=Difficulty)
    rooms: int = 9000
    executor: float = 0.5
    bad_plans: float = 0.5
    midway: float = 0.7
    wander: int = 8
    env: SokobanEnvOptions = field(default_factory=lambda: SokobanEnvOptions(view="compact", max_moves=3))

    def __post_init__(self) -> None:
        names = ("habits_from", "habits_before", "executor", "bad_plans", "midway")
        _check_shares(**{name: getattr(self, name) for name in names})


def make_demos(course: SokobanCourse, seed: int, exclude: Collection[str] = ()) -> list[Messages]:
    """Return the conversations of the course; none about a room with a key in `exclude`."""
    rng = random.Random(f"sokoban-demos-{seed}")
    puzzles = generate(min(course.rooms, course.count), 10 * seed + 7, course.difficulty, exclude=frozenset(exclude))
    team = Demonstrators(course.env, rng)

    def draw() -> Iterator[tuple[Room, State]]:
        while True:
            puzzle = rng.choice(puzzles)
            yield puzzle.room, pick_state(rng, puzzle, course.wander) if rng.random() < course.midway else puzzle.start

    def episode(place: tuple[Room, State], habits: Habits) -> list[Messages]:
        if rng.random() >= course.executor:
            return [team.tool_demo(*place, habits)]
        plans = Habits(plan=1.0 - course.bad_plans) if habits is course.careful else habits
        return [team.executor_demo(*place, team.plan(*place, plans)[1], habits)]

    return course.conversations(rng, draw(), episode)


def team_success(habits: Habits, env: SokobanEnvOptions, max_turns: int, puzzles: Sequence[Puzzle], seed: int = 0) -> float:
    """Return the share of `puzzles` that demonstrators with `habits` solve within `max_turns` turns."""
    team = Demonstrators(env, random.Random(f"sokoban-success-{seed}"))
    return sum(team.solves(puzzle, habits, max_turns) for puzzle in puzzles) / len(puzzles)


class Demonstrators:
    """Plays both roles in the short prompt style, in rooms as the environment with options `env` shows them."""

    def __init__(self, env: SokobanEnvOptions, rng: random.Random) -> None:
        self._env, self._rng = env, rng
        options = SokobanOptions(prompt_style="short")
        self._tool, self._executor = ToolAgent(config=options), ExecutorAgent(config=options)

    def plan(self, room: Room, state: State, habits: Habits) -> tuple[str, str]:
        """Return the Tool agent's reply and its moves."""
        if self._rng.random() < habits.plan:
            return careful(room, state, self._env.max_moves)
        moves = guessed(self._rng, self._env.max_moves)
        return moves_reply(moves), moves

    def decide(self, room: Room, state: State, plan: str, habits: Habits) -> tuple[str, str]:
        """Return the Executor's reply to a plan and its moves."""
        if self._rng.random() < habits.check:
            return careful(room, state, self._env.max_moves)
        return moves_reply(plan), plan

    def tool_demo(self, room: Room, state: State, habits: Habits) -> Messages:
        """Return one conversation of the Tool agent."""
        return self._conversation(self._tool, room, state, [], self.plan(room, state, habits)[0])

    def executor_demo(self, room: Room, state: State, plan: str, habits: Habits) -> Messages:
        """Return one conversation of the Executor about `plan`."""
        entries = [Entry(TOOL, moves_reply(plan), plan)]
        return self._conversation(self._executor, room, state, entries, self.decide(room, state, plan, habits)[0])

    def solves(self, puzzle: Puzzle, habits: Habits, max_turns: int) -> bool:
        """Play an episode and return whether the room was solved."""
        room, state = puzzle.room, puzzle.start
        for _ in range(max_turns):
            if solve(room, state).solution is None:
                return False
            plan = self.plan(room, state, habits)[1]
            made = walk(room, state, self.decide(room, state, plan, habits)[1])
            state = made.states[-1] if made.states else state
            if is_solved(room, state):
                return True
        return False

    def _conversation(self, agent: ToolAgent | ExecutorAgent, room: Room, state: State, entries: Sequence[Entry], reply: str) -> Messages:
        return conversation(agent, shown(room, state, self._env.view), reply, entries)


def pick_state(rng: random.Random, puzzle: Puzzle, wander: int) -> State:
    """Return a state that is not solved and can be: a part of the puzzle's solution made, then up to `wander` moves at random."""
    room = puzzle.room
    made = walk(room, puzzle.start, puzzle.solution.moves[: rng.randrange(len(puzzle.solution.moves))])
    state = on_the_way = made.states[-1] if made.states else puzzle.start
    for _ in range(rng.randint(0, wander)):
        after = move(room, state, rng.choice(MOVES))
        if after is not None and not is_solved(room, after) and not is_lost(room, after):
            state = after
    return state if solve(room, state).solution is not None else on_the_way


def careful(room: Room, state: State, limit: int) -> tuple[str, str]:
    """Return a reply with the solver's next moves, and the moves: the way to the next push and the pushes straight on, at most `limit`.

    The reply says which way the box goes next and the way to the cell to push it from.

    Raises:
        AgentSystemError: the solver knows no way on from `state`.
    """
    solution = solve(room, state).solution
    if solution is None or not solution.moves:
        raise AgentSystemError("careful moves need a state that the solver can solve and that is not solved; draw another one")
    states = [state, *walk(room, state, solution.moves).states]
    pushes = [after.boxes != before.boxes for before, after in pairwise(states)]
    first = end = pushes.index(True)
    push = solution.moves[first]
    while end < len(pushes) and pushes[end] and solution.moves[end] == push:
        end += 1
    moves = solution.moves[: min(end, limit)]
    return f"box {push} from {way(room, state.player, states[first].player)}\n{moves_reply(moves)}", moves


def guessed(rng: random.Random, limit: int) -> str:
    """Return one to `limit` moves at random."""
    return "".join(rng.choices(MOVES, k=rng.randint(1, limit)))


WORLD = World(SokobanCourse(), TASKS, make_demos, size=UNTIED)
