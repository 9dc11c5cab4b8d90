"""Demonstrations of both roles for the warm start of a tiny model, which reads pencil marks (`env.params.view=marks`).

They first teach mostly a skill and then a habit. The skill: write the cells with one candidate, and start over when the board contradicts
itself (`pencil.careful_cells`). The habit of the last part: the Tool mostly guesses, and the Executor mostly copies the plan. So the
warm-started team knows how to be careful but seldom is, and reinforcement learning, which sees no demonstration, can find out that care
pays. `team_success` says how often demonstrators with given habits solve their puzzles.

The prompts are made by the agents of the workflow in the short style, so they are what the team reads later.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from agent_system.agent import Entry
from agent_system.workflows.sudoku.action import cells_text, parse_action
from agent_system.workflows.sudoku.agents import TOOL, ExecutorAgent, SudokuAgent, ToolAgent
from agent_system.workflows.sudoku.generate import Kind, generate
from agent_system.workflows.sudoku.options import SudokuOptions
from agent_system.workflows.sudoku.pencil import Cells, careful_cells, guessed_cells, marks_text
from agent_system.workflows.sudoku.puzzle import Board, Puzzle
from agent_system.workflows.sudoku.state import State, apply_action

Messages = list[dict[str, str]]
MOST_CELLS = 81


@dataclass(frozen=True)
class Habits:
    """How often the demonstrators take care.

    Attributes:
        work: share of the Tool's replies that read the marks; the others guess.
        check: share of the Executor's replies that read the marks; the others copy the plan.
        guesses: most cells of a guess.
        executor: share of demonstrations that are the Executor's.
        stray: share of guesses that come up on the board and in plans all the same, which show how to mend them.
    """

    work: float = 0.25
    check: float = 0.25
    guesses: int = 3
    executor: float = 0.5
    stray: float = 0.0


CAREFUL = Habits(work=1.0, check=1.0, stray=0.3)


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
    """

    count: int = 16_000
    max_turns: int = 6
    kind: Kind = field(default_factory=Kind)
    habits_from: float = 0.75
    habits_before: float = 0.15
    reuse: int = 2
    habits: Habits = Habits()


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
    """Plays both roles in the short prompt style on pencil marks."""

    def __init__(self, course: Course, rng: random.Random) -> None:
        options = SudokuOptions(prompt_style="short")
        self.tool = ToolAgent(config=options)
        self.executor = ExecutorAgent(config=options)
        self.course = course
        self.rng = rng

    def episode(self, puzzle: Puzzle, habits: Habits) -> tuple[list[Messages], bool]:
        """Return the conversations of one episode, one a turn, and whether the puzzle was solved."""
        state = State.start(puzzle)
        conversations: list[Messages] = []
        for _ in range(self.course.max_turns):
            plan, cells = self._plan(state, habits)
            executor = self.rng.random() < habits.executor
            if executor and self.rng.random() < habits.stray:
                cells = guessed_cells(self.rng, state, habits.guesses)
                plan = reply("Guess.", "plan", cells, puzzle.size)
            said, made = self._decide(state, plan, cells, habits)
            if executor:
                conversations.append(self._conversation(self.executor, state, [Entry(TOOL, plan)], said))
            else:
                conversations.append(self._conversation(self.tool, state, [], plan))
            if self.rng.random() < habits.stray:
                made = guessed_cells(self.rng, state, habits.guesses)
            state = apply_action(state, parse_action(cells_text(made, puzzle.size), puzzle.size), MOST_CELLS).state
            if state.solved:
                return conversations, True
        return conversations, False

    def _plan(self, state: State, habits: Habits) -> tuple[str, Cells]:
        """Return the Tool's reply and its cells."""
        worked = self.rng.random() < habits.work
        cells = careful_cells(state) if worked else guessed_cells(self.rng, state, habits.guesses)
        return reply("Work." if worked else "Guess.", "plan", cells, state.puzzle.size), cells

    def _decide(self, state: State, plan: str, cells: Cells, habits: Habits) -> tuple[str, Cells]:
        """Return the Executor's reply and its cells."""
        checked = self.rng.random() < habits.check
        made = careful_cells(state) if checked else cells
        return reply("Work." if checked else "Copy.", "action", made, state.puzzle.size), made

    def _conversation(self, agent: SudokuAgent, state: State, entries: list[Entry], text: str) -> Messages:
        variables = {"env_prompt": marks_text(state), "team_context": agent.team_context(entries), "step": 1, "memory": ""}
        return [*agent.messages(variables), {"role": "assistant", "content": text}]


def reply(word: str, tag: str, cells: Cells, size: int) -> str:
    """Return a word that names the way of working, and cells: `Work. <plan>1 2 3; 4 1 2</plan>`."""
    return f"{word} <{tag}>{cells_text(cells, size)}</{tag}>"
