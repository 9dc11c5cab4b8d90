"""Demonstrations of the word problems by a Solver and a Verifier.

A careful Solver works a problem out line by line, and a careful Verifier recomputes a solution before the
verdict. By habit, the Solver works out only the short problems and guesses the others, and the Verifier
approves without a check.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass

from agent_system.agent import Entry
from agent_system.workflows.math.team import (
    APPROVE,
    REJECT,
    SOLVER,
    VERIFIER,
    MathOptions,
    SolverAgent,
    VerifierAgent,
)
from examples.embedded.course import Course, Messages, World, conversation
from examples.embedded.math.tasks import ORDINALS, TASKS, Problem, Step, generate

GLANCE_REJECTS = f"Looks wrong. <verify>{REJECT}</verify>"


@dataclass(frozen=True)
class Habits:
    """Probabilities of careful replies.

    Attributes:
        work_short: share of problems with at most two steps that the Solver works out.
        work_long: the same for longer ones.
        guess_right: share of the Solver's guesses that are right.
        recompute: share of solutions that the Verifier recomputes.
        skim_approve: share of approvals among verdicts given without recomputing.
        retry: share of the Solver's prompts with a rejected solution.
        verifier: share of demonstrations that are the Verifier's.
    """

    work_short: float = 0.65
    work_long: float = 0.2
    guess_right: float = 0.15
    recompute: float = 0.5
    skim_approve: float = 0.85
    retry: float = 0.25
    verifier: float = 0.45


CAREFUL = Habits(work_short=1.0, work_long=1.0, recompute=1.0)


@dataclass(frozen=True)
class MathCourse(Course):
    """See `Course`.

    Attributes:
        easy: share of problems with one or two steps, which are the first ones.
    """

    habits: Habits = Habits()
    careful: Habits = CAREFUL
    easy: float = 0.25


def make_demos(course: MathCourse, seed: int, exclude: Collection[str] = ()) -> list[Messages]:
    """Return the conversations of the course; none about a question in `exclude`."""
    rng = random.Random(f"demos-{seed}")
    num_easy = int(course.count * course.easy)
    problems = generate(num_easy, 10 * seed + 7, exclude=exclude, min_steps=1, max_steps=2)
    problems += generate(course.count - num_easy, 10 * seed + 8, exclude=exclude)
    agents = Demonstrators()
    return course.conversations(rng, problems, lambda problem, habits: [agents.demo(rng, problem, habits)])


class Demonstrators:
    """Demonstrators of both roles in the short prompt style."""

    def __init__(self) -> None:
        options = MathOptions(prompt_style="short")
        self.solver = SolverAgent(config=options)
        self.verifier = VerifierAgent(config=options)

    def demo(self, rng: random.Random, problem: Problem, habits: Habits) -> Messages:
        """Return one conversation of the Solver or the Verifier about `problem`."""
        if rng.random() < habits.verifier:
            text, answer = draft(rng, problem)
            reply = verdict_reply(rng, problem, answer, habits)
            return conversation(self.verifier, problem.question, reply, [Entry(SOLVER, text)])
        entries: list[Entry] = []
        if rng.random() < habits.retry:
            text, answer = draft(rng, problem)
            recomputed = answer != problem.answer and rng.random() < habits.recompute
            rejection = checked_verdict(problem, answer) if recomputed else GLANCE_REJECTS
            entries = [Entry(SOLVER, text), Entry(VERIFIER, rejection)]
        return conversation(self.solver, problem.question, solver_reply(rng, problem, habits), entries)


def solver_reply(rng: random.Random, problem: Problem, habits: Habits) -> str:
    """Return a worked solution or a guess, with the probabilities of `habits`."""
    share = habits.work_short if len(problem.steps) <= 2 else habits.work_long
    if rng.random() < share:
        return problem.worked_solution()
    return f"I guess \\boxed{{{guess(rng, problem, habits.guess_right)}}}"


def verdict_reply(rng: random.Random, problem: Problem, answer: int, habits: Habits) -> str:
    """Return a verdict on `answer`: after recomputing, or without a check, which mostly approves."""
    if rng.random() < habits.recompute:
        return checked_verdict(problem, answer)
    if rng.random() < habits.skim_approve:
        return f"Looks fine. <verify>{APPROVE}</verify>"
    return GLANCE_REJECTS


def checked_verdict(problem: Problem, answer: int) -> str:
    """Return the steps, both answers and their difference, and the resulting verdict."""
    verdict = APPROVE if answer == problem.answer else REJECT
    return f"{problem.working()} I get {problem.answer}, Solver {answer}, off by {abs(problem.answer - answer)}. <verify>{verdict}</verify>"


def draft(rng: random.Random, problem: Problem) -> tuple[str, int]:
    """Return a solution for a Verifier's prompt (worked, worked with an error, or a guess; right or wrong)
    and its answer.
    """
    kind = rng.random()
    if kind < 0.3:
        return problem.worked_solution(), problem.answer
    if kind < 0.5:
        slipped = with_slip(rng, problem)
        if slipped is not None:
            return slipped.worked_solution(), slipped.answer
    answer = problem.answer if rng.random() < 0.5 else guess(rng, problem, 0.15)
    return f"I guess \\boxed{{{answer}}}", answer


def guess(rng: random.Random, problem: Problem, right: float) -> int:
    """Return the answer with probability `right`, else an integer near it."""
    if rng.random() < right:
        return problem.answer
    return max(1, problem.answer + rng.choice((-6, -5, -4, -3, -2, -1, 1, 2, 3, 4, 5, 6)))


def with_slip(rng: random.Random, problem: Problem) -> Problem | None:
    """Return `problem` with an error in one step and its consequences, or None when a value leaves 1..99 or
    the answer is still right.
    """
    at = rng.randrange(len(problem.steps))
    steps: list[Step] = []
    value = problem.steps[0].left
    for i, step in enumerate(problem.steps[: len(ORDINALS)]):
        result = {"+": value + step.right, "-": value - step.right, "*": value * step.right}[step.op]
        if i == at:
            result += rng.choice((-10, -3, -2, -1, 1, 2, 3, 10))
        if not 1 <= result <= 99:
            return None
        steps.append(Step(value, step.op, step.right, result))
        value = result
    return None if value == problem.answer else Problem(problem.question, tuple(steps))


WORLD = World(MathCourse(), TASKS, make_demos)
