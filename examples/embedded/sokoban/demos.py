"""Demonstrations of the rooms by a Tool and an Executor, with the compact view.

A careful reply copies the signs of the cells next to the box and next to the player, states the direction of
the next push and the offset of the cell that the player must make it from, and makes the solver's moves:

    box U - D - L @ R - me U # D - L - R $
    push U from D 1 R 1
    <moves>D R U</moves>

Without the copied signs, the tiny model learns the usual way around a box and often walks into a wall that
its prompt shows.

A habitual reply has the moves only: random moves of the Tool, a copy of the proposal by the Executor. So the
first token determines the kind of reply. Careful replies are also demonstrated from states off the solution,
so that the states after a guess are covered.

The first tokens are `box` and `<` because both also occur elsewhere. In a tiny model with tied embeddings,
words that occur as alternatives at one position only (such as `Care` and `Guess`) get nearly the same
embedding, so that the model could not distinguish the text after them.

Where actions are pushes (course `pushes`), a careful reply states for every push how many pushes it leaves,
with `#` for one that cannot be made and `x` for one that loses the room, and makes the best:

    U 1 D x L # R 3
    <moves>U</moves>

An inner wall that blocks the usual way around the box is rare in rooms of the default difficulty. Half of the
rooms that are demonstrated, and half of the training tasks, therefore have more walls than the test tasks.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from agent_system.agent import Entry
from agent_system.errors import AgentSystemError
from agent_system.workflows.moves import moves_reply
from agent_system.workflows.proposer_executor import TOOL
from agent_system.workflows.sokoban.env import SokobanEnvOptions
from agent_system.workflows.sokoban.team import SokobanExecutorAgent, SokobanOptions, SokobanProposerAgent
from agent_system.workflows.sokoban.world import generate
from agent_system.workflows.sokoban.world.generate import SokobanDifficulty, SokobanPuzzle
from agent_system.workflows.sokoban.world.pushes import ACTIONS, possible_pushes
from agent_system.workflows.sokoban.world.rules import MOVES, Room, SokobanState, is_solved, move, walk
from agent_system.workflows.sokoban.world.solver import is_lost, solve
from agent_system.workflows.sokoban.world.view import around, last_line, view_text, way
from examples.embedded.course import UNTIED, Course, Messages, World, conversation


def _check_shares(**shares: float) -> None:
    for name, share in shares.items():
        if not 0.0 <= share <= 1.0:
            raise AgentSystemError(f"{name} is a share and must be 0 to 1, found {share:g}")


@dataclass(frozen=True)
class Habits:
    """Probabilities of careful replies.

    Attributes:
        plan: share of the Tool's plans that are the solver's; the others are guesses.
        check: share of the Executor's replies that work the moves out again; the others copy the plan.
    """

    plan: float = 0.2
    check: float = 0.2

    def __post_init__(self) -> None:
        _check_shares(plan=self.plan, check=self.check)


CAREFUL = Habits(plan=1.0, check=1.0)


@dataclass(frozen=True)
class Place:
    """A situation in a room: its state, the moves made in the last turn, and the illegal move after them
    (empty without).
    """

    room: Room
    state: SokobanState
    made: str = ""
    stopped: str = ""


@dataclass(frozen=True)
class SokobanCourse(Course):
    """See `Course`.

    Attributes:
        rooms: number of different rooms.
        walled: share of demonstrations in rooms with more walls (`walled`).
        executor: share of demonstrations that are the Executor's.
        bad_plans: share of guesses among the plans in the prompts of a careful Executor.
        midway: share of demonstrations that begin in the middle of a room's solution.
        wander: maximum number of random actions away from it.
        stopped: share of demonstrations in which the last turn ended with an illegal move.
        env: options of the environment: view, kind of actions, and maximum number of them per turn.
    """

    count: int = 30_000
    habits: Habits = Habits()
    careful: Habits = CAREFUL
    habits_from: float = 0.8
    difficulty: SokobanDifficulty = field(default_factory=SokobanDifficulty)
    rooms: int = 9000
    walled: float = 0.5
    executor: float = 0.5
    bad_plans: float = 0.5
    midway: float = 0.7
    wander: int = 8
    stopped: float = 0.3
    env: SokobanEnvOptions = field(
        default_factory=lambda: SokobanEnvOptions(view="compact", show_last=True, max_moves=3)
    )

    def __post_init__(self) -> None:
        names = ("habits_from", "habits_before", "executor", "bad_plans", "walled", "midway", "stopped")
        _check_shares(**{name: getattr(self, name) for name in names})


def make_demos(course: SokobanCourse, seed: int, exclude: Collection[str] = ()) -> list[Messages]:
    """Return the conversations of the course; none about a room with a key in `exclude`."""
    rng = random.Random(f"sokoban-demos-{seed}")
    num_rooms = max(1, min(course.rooms, course.count) // 2)
    usual, more_walls = (
        generate.generate(num_rooms, 10 * seed + 7, kind, exclude=frozenset(exclude))
        for kind in (course.difficulty, walled(course.difficulty))
    )
    team = Demonstrators(course.env, rng)

    def draw() -> Iterator[Place]:
        while True:
            puzzle = rng.choice(more_walls if rng.random() < course.walled else usual)
            midway = rng.random() < course.midway
            place = (
                pick_place(rng, puzzle, course.wander, course.env)
                if midway
                else Place(puzzle.room, puzzle.start)
            )
            yield stopped(rng, place) if rng.random() < course.stopped else place

    def episode(place: Place, habits: Habits) -> list[Messages]:
        if rng.random() >= course.executor:
            return [team.tool_demo(place, habits)]
        plans = Habits(plan=1.0 - course.bad_plans) if habits is course.careful else habits
        return [team.executor_demo(place, team.plan(place, plans)[1], habits)]

    return course.conversations(rng, draw(), episode)


def walled(difficulty: SokobanDifficulty) -> SokobanDifficulty:
    """Return the difficulty with a quarter of the cells inside walled up, or more if it has more."""
    return replace(difficulty, wall_share=max(0.25, difficulty.wall_share))


def generate_split(
    num_train: int, num_test: int, seed: int, difficulty: SokobanDifficulty
) -> tuple[list[SokobanPuzzle], list[SokobanPuzzle]]:
    """Return (train, test) rooms without a common key, as `world.generate` does, but half of the training
    rooms have more walls.
    """
    usual, test = generate.generate_split(num_train - num_train // 2, num_test, seed, difficulty)
    more_walls = generate.generate(
        num_train // 2,
        2 * seed,
        walled(difficulty),
        exclude=frozenset(puzzle.key for puzzle in [*usual, *test]),
    )
    return [*usual, *more_walls], test


def team_success(
    habits: Habits, env: SokobanEnvOptions, max_turns: int, puzzles: Sequence[SokobanPuzzle], seed: int = 0
) -> float:
    """Return the share of `puzzles` that demonstrators with `habits` solve within `max_turns` turns."""
    team = Demonstrators(env, random.Random(f"sokoban-success-{seed}"))
    return sum(team.solves(puzzle, habits, max_turns) for puzzle in puzzles) / len(puzzles)


class Demonstrators:
    """Demonstrators of both roles in the short prompt style, with the views of an environment with options
    `env`.
    """

    def __init__(self, env: SokobanEnvOptions, rng: random.Random) -> None:
        self._env, self._rng = env, rng
        options = SokobanOptions(prompt_style="short")
        self._tool, self._executor = (
            SokobanProposerAgent(config=options),
            SokobanExecutorAgent(config=options),
        )

    def plan(self, place: Place, habits: Habits) -> tuple[str, str]:
        """Return the Tool's reply and its moves."""
        if self._rng.random() < habits.plan:
            return self._careful(place)
        moves = guessed(self._rng, self._env.max_moves)
        return moves_reply(moves), moves

    def decide(self, place: Place, plan: str, habits: Habits) -> tuple[str, str]:
        """Return the Executor's reply to a plan and its moves."""
        if self._rng.random() < habits.check:
            return self._careful(place)
        return moves_reply(plan), plan

    def _careful(self, place: Place) -> tuple[str, str]:
        if self._env.actions == "pushes":
            return careful_push(place.room, place.state)
        return careful(place.room, place.state, self._env.max_moves)

    def tool_demo(self, place: Place, habits: Habits) -> Messages:
        """Return one conversation of the Tool."""
        return self._conversation(self._tool, place, [], self.plan(place, habits)[0])

    def executor_demo(self, place: Place, plan: str, habits: Habits) -> Messages:
        """Return one conversation of the Executor about `plan`."""
        entries = [Entry(TOOL, moves_reply(plan), plan)]
        return self._conversation(self._executor, place, entries, self.decide(place, plan, habits)[0])

    def solves(self, puzzle: SokobanPuzzle, habits: Habits, max_turns: int) -> bool:
        """Play an episode and return whether the room was solved."""
        place = Place(puzzle.room, puzzle.start)
        for _ in range(max_turns):
            if solve(place.room, place.state).solution is None:
                return False
            moves = self.decide(place, self.plan(place, habits)[1], habits)[1]
            states = ACTIONS[self._env.actions](place.room, place.state, moves).states
            place = replace(place, state=states[-1] if states else place.state)
            if is_solved(place.room, place.state):
                return True
        return False

    def _conversation(
        self,
        agent: SokobanProposerAgent | SokobanExecutorAgent,
        place: Place,
        entries: Sequence[Entry],
        reply: str,
    ) -> Messages:
        text = view_text(place.room, place.state, self._env.view, self._env.actions)
        if self._env.show_last:
            text = f"{text}\n{last_line(place.made, place.stopped, self._env.max_moves)}"
        return conversation(agent, text, reply, entries)


def pick_place(rng: random.Random, puzzle: SokobanPuzzle, wander: int, env: SokobanEnvOptions) -> Place:
    """Return an unsolved, solvable state after a part of the puzzle's solution and up to `wander` random
    actions; the last are shown.
    """
    room, made = puzzle.room, puzzle.solution.moves[: rng.randrange(len(puzzle.solution.moves))]
    states = walk(room, puzzle.start, made).states
    state = states[-1] if states else puzzle.start
    for letter in rng.choices(MOVES, k=rng.randint(0, wander)):
        for after in ACTIONS[env.actions](room, state, letter).states:
            if not is_solved(room, after) and not is_lost(room, after):
                state, made = after, made + letter
    return Place(room, state, made[len(made) - min(len(made), rng.randint(1, env.max_moves)) :])


def stopped(rng: random.Random, place: Place) -> Place:
    """Return the place as it is after a turn that an illegal move ended; one without illegal moves is
    returned unchanged.
    """
    illegal = [letter for letter in MOVES if move(place.room, place.state, letter) is None]
    return replace(place, made=place.made[1:], stopped=rng.choice(illegal)) if illegal else place


def careful(room: Room, state: SokobanState, limit: int) -> tuple[str, str]:
    """Return a reply with the solver's next moves, and the moves: up to the next push and its repetitions, at
    most `limit`.

    The reply states the cells next to the box and next to the player, the direction of the push, and the
    offset of the cell from which it is made.

    Raises:
        AgentSystemError: the solver has no solution from `state`, or `state` is solved.
    """
    solution = solve(room, state).solution
    if solution is None or not solution.moves:
        raise AgentSystemError(
            "careful moves need an unsolved state for which the solver has a solution; draw another state"
        )
    states = [state, *walk(room, state, solution.moves).states]
    pushes = [after.boxes != before.boxes for before, after in pairwise(states)]
    first = end = pushes.index(True)
    push = solution.moves[first]
    while end < len(pushes) and pushes[end] and solution.moves[end] == push:
        end += 1
    moves = solution.moves[: min(end, limit)]
    (box,) = state.boxes
    seen = f"box {around(room, state, box)} me {around(room, state, state.player)}"
    return (
        f"{seen}\npush {push} from {way(room, state.player, states[first].player)}\n{moves_reply(moves)}",
        moves,
    )


def careful_push(room: Room, state: SokobanState) -> tuple[str, str]:
    """Return a reply that values every push and makes the best, and the best push's direction; the first of
    equal ones.

    Raises:
        AgentSystemError: no push from `state` leads to a solution, or `state` is solved.
    """
    possible, left = possible_pushes(room, state), dict[str, int]()
    values: list[str] = []
    for letter in MOVES:
        solution = solve(room, possible[letter]).solution if letter in possible else None
        if solution is not None:
            left[letter] = solution.pushes
        values.append(f"{letter} {left.get(letter, 'x' if letter in possible else '#')}")
    if not left or is_solved(room, state):
        raise AgentSystemError(
            "careful pushes need an unsolved state for which the solver has a solution; draw another state"
        )
    best = min(left, key=left.__getitem__)
    return f"{' '.join(values)}\n{moves_reply(best)}", best


def guessed(rng: random.Random, limit: int) -> str:
    """Return one to `limit` random moves."""
    return "".join(rng.choices(MOVES, k=rng.randint(1, limit)))


PUSHES = SokobanCourse(
    habits=Habits(plan=0.1, check=0.1),
    wander=3,
    stopped=0.0,
    env=SokobanEnvOptions(view="compact", actions="pushes", max_moves=1),
)
WORLD = World(
    SokobanCourse(),
    replace(generate.TASKS, generate=generate_split),
    make_demos,
    size=UNTIED,
    courses={"pushes": PUSHES},
)
