"""Demonstrations of both roles for the warm start of a tiny model.

They first teach mostly a skill and then a habit. The skill: work the board out cell by cell, those first that are certain. The habit of
the last part: the Tool mostly writes a guess down, and the Executor mostly copies the plan. So the warm-started team knows how to be
careful but often is not, and reinforcement learning, which sees no demonstration, can find out that care pays.

The prompts are made by the agents of the workflow in the short style, so they are what the team reads later.
"""

from __future__ import annotations

import random
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from agent_system.agent import Entry
from agent_system.workflows.sudoku.action import cells_text
from agent_system.workflows.sudoku.agents import TOOL, ExecutorAgent, SudokuAgent, ToolAgent
from agent_system.workflows.sudoku.deduce import deduce
from agent_system.workflows.sudoku.generate import Kind, generate
from agent_system.workflows.sudoku.options import SudokuOptions
from agent_system.workflows.sudoku.puzzle import Board, Puzzle
from agent_system.workflows.sudoku.render import describe
from agent_system.workflows.sudoku.state import State

Messages = list[dict[str, str]]
Cells = list[tuple[int, int]]


@dataclass(frozen=True)
class Habits:
    """How often the demonstrators take care.

    Attributes:
        work: share of the Tool's replies that work the board out; the others guess.
        guess_right: chance that a guessed cell is right.
        check: share of the Executor's replies that work the board out; the others copy the plan.
        explain: careful replies give the reason of every cell; else they only list the cells in the order of the reasons.
        later: share of prompts from a later turn, with a guess on the board.
        plan_right: share of plans in the Executor's prompts that are right.
        executor: share of demonstrations that are the Executor's.
    """

    work: float = 0.3
    guess_right: float = 0.6
    check: float = 0.25
    explain: bool = True
    later: float = 0.25
    plan_right: float = 0.5
    executor: float = 0.5


CAREFUL = Habits(work=1.0, check=1.0)


@dataclass(frozen=True)
class Course:
    """What a warm start shows, in this order; shares of `count`.

    Attributes:
        count: demonstrations in all.
        kind: puzzles of the main part.
        easy: share that comes first and is about `easy` puzzles of the same size.
        habits_from: the share after which `habits` rule; until then most are careful.
        habits_before: share of demonstrations by `habits` until then, so that both ways are known apart by role.
        reuse: demonstrations made of one puzzle.
        habits, careful: see `Habits`.
    """

    count: int = 24_000
    kind: Kind = field(default_factory=Kind)
    easy: float = 0.25
    habits_from: float = 0.75
    habits_before: float = 0.15
    reuse: int = 2
    habits: Habits = Habits()
    careful: Habits = CAREFUL


def make_demos(course: Course, seed: int, exclude: AbstractSet[Board] = frozenset()) -> list[Messages]:
    """Return `course.count` conversations (prompt and reply) in the order of the course.

    Args:
        course: what is shown.
        seed: draws puzzles and replies.
        exclude: canonical forms of puzzles that may not come up: those of the test set.

    Raises:
        AgentSystemError: there are not so many puzzles of the kind; a higher `reuse` needs fewer.
    """
    rng = random.Random(f"sudoku-demos-{seed}")
    num_easy = int(course.count * course.easy)
    puzzles = _drawn(num_easy, course.reuse, 10 * seed + 7, Kind(course.kind.size, "easy"), exclude)
    puzzles += _drawn(course.count - num_easy, course.reuse, 10 * seed + 8, course.kind, exclude)
    demonstrators = Demonstrators()
    conversations = []
    for i, puzzle in enumerate(puzzles):
        habitual = i >= course.count * course.habits_from or rng.random() < course.habits_before
        conversations.append(demonstrators.demo(rng, puzzle, course.habits if habitual else course.careful))
    return conversations


def _drawn(count: int, reuse: int, seed: int, kind: Kind, exclude: AbstractSet[Board]) -> list[Puzzle]:
    distinct = generate(-(-count // reuse), seed, kind, exclude=exclude)
    return [distinct[i % len(distinct)] for i in range(count)]


class Demonstrators:
    """Makes conversations of either role in the short prompt style."""

    def __init__(self) -> None:
        options = SudokuOptions(prompt_style="short")
        self.tool = ToolAgent(config=options)
        self.executor = ExecutorAgent(config=options)

    def demo(self, rng: random.Random, puzzle: Puzzle, habits: Habits) -> Messages:
        """Return one conversation of the Tool or the Executor about `puzzle`."""
        state = State.start(puzzle)
        if rng.random() < habits.later:
            filled = _written(state, guess(rng, puzzle, habits.guess_right))
            state = state if filled.solved else filled  # a solved board has no later turn
        if rng.random() >= habits.executor:
            cells = guess(rng, puzzle, habits.guess_right)
            reply = worked(puzzle, "plan", habits.explain) if rng.random() < habits.work else careless("Guess.", "plan", cells, puzzle)
            return self._conversation(self.tool, state, [], reply)
        right = rng.random() < habits.plan_right
        plan = solved(puzzle) if right else guess(rng, puzzle, habits.guess_right)
        said = worked(puzzle, "plan", habits.explain) if right else careless("Guess.", "plan", plan, puzzle)
        reply = worked(puzzle, "action", habits.explain) if rng.random() < habits.check else careless("Copy.", "action", plan, puzzle)
        return self._conversation(self.executor, state, [Entry(TOOL, said)], reply)

    def _conversation(self, agent: SudokuAgent, state: State, entries: list[Entry], reply: str) -> Messages:
        variables = {"env_prompt": describe(state), "team_context": agent.team_context(entries), "step": 1, "memory": ""}
        return [*agent.messages(variables), {"role": "assistant", "content": reply}]


def worked(puzzle: Puzzle, tag: str, explain: bool) -> str:
    """Return a careful reply: the reason of every cell, then all cells in that order."""
    steps = deduce(puzzle)
    reasons = " " + " ".join(step.words(puzzle.size) for step in steps) if explain else ""
    return f"Work.{reasons} <{tag}>{cells_text([(step.cell, step.digit) for step in steps], puzzle.size)}</{tag}>"


def careless(word: str, tag: str, cells: Cells, puzzle: Puzzle) -> str:
    """Return a reply without a reason: a word that names the habit, and cells."""
    return f"{word} <{tag}>{cells_text(cells, puzzle.size)}</{tag}>"


def solved(puzzle: Puzzle) -> Cells:
    """Return the right cells in the order in which they can be found."""
    return [(step.cell, step.digit) for step in deduce(puzzle)]


def guess(rng: random.Random, puzzle: Puzzle, right: float) -> Cells:
    """Return every open cell in reading order, each right with probability `right` and any other digit otherwise."""
    cells: Cells = []
    for cell in puzzle.empty:
        digit = puzzle.solution[cell]
        wrong = rng.choice([other for other in range(1, puzzle.size + 1) if other != digit])
        cells.append((cell, digit if rng.random() < right else wrong))
    return cells


def _written(state: State, cells: Cells) -> State:
    board = list(state.board)
    for cell, digit in cells:
        board[cell] = digit
    return State(state.puzzle, tuple(board))
