"""Demonstrations of both roles for the warm start of a tiny model, which reads and writes whole boards (`env.params.view=digits`).

They first teach mostly a skill and then a habit. The skill: fill the cells that can hold one digit only (`fill.careful`). The habit of the
last part: the Tool mostly guesses, and the Executor mostly copies the plan. So the warm-started team knows how to be careful but often
is not, and reinforcement learning, which sees no demonstration, can find out that care pays. `team_success` says how often demonstrators
with given habits solve their puzzles.

The prompts are made by the agents of the workflow in the short style, so they are what the team reads later.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from agent_system.agent import Entry
from agent_system.workflows.sudoku.action import parse_action
from agent_system.workflows.sudoku.agents import TOOL, ExecutorAgent, SudokuAgent, ToolAgent
from agent_system.workflows.sudoku.fill import careful, guessed
from agent_system.workflows.sudoku.generate import Kind, generate
from agent_system.workflows.sudoku.options import SudokuOptions
from agent_system.workflows.sudoku.puzzle import Board, Puzzle
from agent_system.workflows.sudoku.render import digits_text
from agent_system.workflows.sudoku.state import State, apply_action

Messages = list[dict[str, str]]
MOST_CELLS = 81


@dataclass(frozen=True)
class Habits:
    """How often the demonstrators take care.

    Attributes:
        work: share of the Tool's replies that fill what is certain; the others guess.
        check: share of the Executor's replies that fill what is certain; the others copy the plan.
        guesses: most cells of a guess.
        executor: share of demonstrations that are the Executor's.
        stray: share of the Executor's prompts that hold a guess all the same, which show how to mend it.
    """

    work: float = 0.15
    check: float = 0.15
    guesses: int = 3
    executor: float = 0.5
    stray: float = 0.0


CAREFUL = Habits(work=1.0, check=1.0, stray=0.8)


@dataclass(frozen=True)
class Course:
    """What a warm start shows, in this order; shares of `count`.

    Attributes:
        count: demonstrations in all.
        max_turns: of one demonstrated episode.
        kind: of the puzzles.
        habits_from: the share after which `habits` rule; until then most are careful.
        habits_before: share of episodes by `habits` until then, so that both ways are known.
        reuse: episodes of one puzzle.
        habits: see `Habits`.
        clashes: what becomes of digits that clash, as `env.params.clashes` says.
    """

    count: int = 16_000
    max_turns: int = 5
    kind: Kind = field(default_factory=Kind)
    habits_from: float = 0.85
    habits_before: float = 0.15
    reuse: int = 2
    habits: Habits = Habits()
    clashes: str = "clear"


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
    puzzles = generate(max(1, course.count // (2 * course.reuse)), 10 * seed + 7, course.kind, exclude=exclude)
    turning_point = course.count * course.habits_from
    team = Demonstrators(course, rng)
    conversations: list[Messages] = []
    played = 0
    while len(conversations) < course.count:
        habitual = len(conversations) >= turning_point or rng.random() < course.habits_before
        conversations += team.episode(puzzles[played % len(puzzles)], course.habits if habitual else CAREFUL)[0]
        played += 1
    return conversations[: course.count]


def team_success(course: Course, habits: Habits, puzzles: Sequence[Puzzle], seed: int = 0) -> float:
    """Return the share of `puzzles` that demonstrators with `habits` solve within `course.max_turns`."""
    team = Demonstrators(course, random.Random(f"sudoku-success-{seed}"))
    return sum(team.episode(puzzle, habits)[1] for puzzle in puzzles) / len(puzzles)


class Demonstrators:
    """Plays both roles in the short prompt style on boards of digits."""

    def __init__(self, course: Course, rng: random.Random) -> None:
        options = SudokuOptions(prompt_style="short")
        self.tool = ToolAgent(config=options)
        self.executor = ExecutorAgent(config=options)
        self.course = course
        self.rng = rng

    def episode(self, puzzle: Puzzle, habits: Habits) -> tuple[list[Messages], bool]:
        """Return the conversations of one episode, one a turn, and whether the puzzle was solved."""
        rng, state = self.rng, State.start(puzzle)
        conversations: list[Messages] = []
        for _ in range(self.course.max_turns):
            board = state.board
            plan = careful(board) if (worked := rng.random() < habits.work) else guessed(rng, board, habits.guesses)
            executor = rng.random() < habits.executor
            if executor and rng.random() < habits.stray:
                plan, worked = guessed(rng, board, habits.guesses), False
            said = reply("Work." if worked else "Guess.", "plan", plan)
            checked = rng.random() < habits.check
            made = careful(board) if checked else plan
            if executor:
                done = reply("Work." if checked else "Copy.", "action", made)
                conversations.append(self._conversation(self.executor, state, [Entry(TOOL, said)], done))
            else:
                conversations.append(self._conversation(self.tool, state, [], said))
            action = parse_action(digits_text(made), puzzle.size)
            state = apply_action(state, action, MOST_CELLS, self.course.clashes).state
            if state.solved:
                return conversations, True
        return conversations, False

    def _conversation(self, agent: SudokuAgent, state: State, entries: list[Entry], text: str) -> Messages:
        variables = {"env_prompt": digits_text(state.board), "team_context": agent.team_context(entries), "step": 1, "memory": ""}
        return [*agent.messages(variables), {"role": "assistant", "content": text}]


def reply(word: str, tag: str, board: Board) -> str:
    """Return a word that names the way of working, and a board: `Work. <plan>1 2 3 4 ...</plan>`, a line a row."""
    return f"{word} <{tag}>{digits_text(board)}</{tag}>"
