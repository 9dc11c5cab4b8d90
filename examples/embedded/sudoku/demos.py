"""Demonstrations of the boards by a Tool and an Executor, which read and write whole boards
(`env.params.view=digits`).

Careful replies fill the cells with one possible digit (`fill.careful`). By habit, the Tool guesses, and the
Executor copies the plan.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import cycle

from agent_system.agent import Entry
from agent_system.workflows.proposer_executor import TOOL
from agent_system.workflows.sudoku.team import SudokuExecutorAgent, SudokuOptions, SudokuProposerAgent
from agent_system.workflows.sudoku.world.action import parse_action
from agent_system.workflows.sudoku.world.generate import TASKS, Kind, generate
from agent_system.workflows.sudoku.world.puzzle import Board, SudokuPuzzle
from agent_system.workflows.sudoku.world.render import digits_text
from agent_system.workflows.sudoku.world.state import SudokuState, apply_action
from examples.embedded.course import UNTIED, Course, Messages, World, conversation
from examples.embedded.sudoku.fill import careful, guessed

MOST_CELLS = 81


@dataclass(frozen=True)
class Habits:
    """Probabilities of careful replies.

    Attributes:
        work: share of the Tool's replies that fill certain cells; the others guess.
        check: share of the Executor's replies that fill certain cells; the others copy the plan.
        guesses: maximum number of cells of a guess.
        executor: share of demonstrations that are the Executor's.
        stray: share of the Executor's prompts whose plan is replaced by a guess, so that the demonstrations
            include its correction.
    """

    work: float = 0.15
    check: float = 0.15
    guesses: int = 3
    executor: float = 0.5
    stray: float = 0.0


CAREFUL = Habits(work=1.0, check=1.0, stray=0.8)


@dataclass(frozen=True)
class SudokuCourse(Course):
    """See `Course`.

    Attributes:
        max_turns: turns of one demonstrated episode.
        reuse: episodes per puzzle.
        clashes: treatment of digits that clash (`env.params.clashes`).
    """

    count: int = 24_000
    habits: Habits = Habits()
    careful: Habits = CAREFUL
    habits_from: float = 0.85
    difficulty: Kind = field(default_factory=lambda: Kind(4, "easy"))
    max_turns: int = 5
    reuse: int = 2
    clashes: str = "clear"


def make_demos(course: SudokuCourse, seed: int, exclude: Collection[Board] = ()) -> list[Messages]:
    """Return the conversations of the course; none on a puzzle whose canonical form is in `exclude`.

    Raises:
        AgentSystemError: there are too few puzzles of the kind; a higher `reuse` needs fewer.
    """
    rng = random.Random(f"sudoku-demos-{seed}")
    puzzles = generate(
        max(1, course.count // (2 * course.reuse)), 10 * seed + 7, course.difficulty, exclude=exclude
    )
    team = Demonstrators(course, rng)
    return course.conversations(rng, cycle(puzzles), lambda puzzle, habits: team.episode(puzzle, habits)[0])


def team_success(
    course: SudokuCourse, habits: Habits, puzzles: Sequence[SudokuPuzzle], seed: int = 0
) -> float:
    """Return the share of `puzzles` that demonstrators with `habits` solve within `course.max_turns`."""
    team = Demonstrators(course, random.Random(f"sudoku-success-{seed}"))
    return sum(team.episode(puzzle, habits)[1] for puzzle in puzzles) / len(puzzles)


class Demonstrators:
    """Demonstrators of both roles in the short prompt style on boards of digits."""

    def __init__(self, course: SudokuCourse, rng: random.Random) -> None:
        options = SudokuOptions(prompt_style="short")
        self.tool = SudokuProposerAgent(config=options)
        self.executor = SudokuExecutorAgent(config=options)
        self.course = course
        self.rng = rng

    def episode(self, puzzle: SudokuPuzzle, habits: Habits) -> tuple[list[Messages], bool]:
        """Return the conversations of one episode, one per turn, and whether the puzzle was solved."""
        rng, state = self.rng, SudokuState.start(puzzle)
        conversations: list[Messages] = []
        for _ in range(self.course.max_turns):
            board, shown = state.board, digits_text(state.board)
            plan = (
                careful(board)
                if (worked := rng.random() < habits.work)
                else guessed(rng, board, habits.guesses)
            )
            executor = rng.random() < habits.executor
            if executor and rng.random() < habits.stray:
                plan, worked = guessed(rng, board, habits.guesses), False
            proposal = reply("Work." if worked else "Guess.", "plan", plan)
            checked = rng.random() < habits.check
            made = careful(board) if checked else plan
            if executor:
                done = reply("Work." if checked else "Copy.", "action", made)
                conversations.append(conversation(self.executor, shown, done, [Entry(TOOL, proposal)]))
            else:
                conversations.append(conversation(self.tool, shown, proposal))
            action = parse_action(digits_text(made), puzzle.size)
            state = apply_action(state, action, MOST_CELLS, self.course.clashes).state
            if state.solved:
                return conversations, True
        return conversations, False


def reply(word: str, tag: str, board: Board) -> str:
    """Return a word for the kind of reply, and a board, one line per row:
    `Work. <plan>1 2 3 4 ...</plan>`.
    """
    return f"{word} <{tag}>{digits_text(board)}</{tag}>"


WORLD = World(SudokuCourse(), TASKS, make_demos, size=UNTIED)
