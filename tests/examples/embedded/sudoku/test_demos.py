import re

from agent_system.workflows.proposer_executor import EXECUTOR, TOOL
from agent_system.workflows.sudoku.team import SudokuExecutorAgent, SudokuProposerAgent
from agent_system.workflows.sudoku.world.generate import Kind, generate
from agent_system.workflows.sudoku.world.puzzle import canonical
from examples.embedded.sudoku.demos import (
    CAREFUL,
    Demonstrators,
    Habits,
    SudokuCourse,
    make_demos,
    team_success,
)


def pairs(course: SudokuCourse, seed: int = 0, **more) -> list[tuple[str, str]]:
    return [(c[0]["content"], c[1]["content"]) for c in make_demos(course, seed, **more)]


def test_habits_fail_often_and_care_of_either_role_never():
    puzzles = generate(150, 11)
    assert 0.25 <= team_success(SudokuCourse(), Habits(), puzzles) <= 0.55
    assert team_success(SudokuCourse(), Habits(work=1.0, check=0.0), puzzles) == 1.0
    assert team_success(SudokuCourse(), Habits(work=0.0, check=1.0), puzzles) == 1.0


def test_both_roles_are_shown_and_every_reply_can_be_read():
    found = pairs(SudokuCourse(count=300))
    assert len(found) == 300
    executors = [prompt.startswith("Fill:") for prompt, _ in found]
    assert 0.35 < sum(executors) / 300 < 0.65
    agents = {True: SudokuExecutorAgent(EXECUTOR), False: SudokuProposerAgent(TOOL)}
    assert all(
        agents[executor].project(reply).valid for executor, (_, reply) in zip(executors, found, strict=True)
    )


def test_the_last_part_is_habit():
    found = [reply for prompt, reply in pairs(SudokuCourse(count=1200)) if prompt.startswith("Fill:")]
    early, late = found[: len(found) // 2], found[-len(found) // 5 :]
    assert (
        sum(reply.startswith("Copy.") for reply in early) / len(early)
        < 0.3
        < 0.45
        < sum(r.startswith("Copy.") for r in late) / len(late)
    )


def test_a_copy_is_a_copy():
    for prompt, reply in pairs(
        SudokuCourse(count=60, habits_from=0.0, habits=Habits(executor=1.0, check=0.0))
    ):
        assert re.findall(r"<plan>(.*)</plan>", prompt, re.S) == re.findall(
            r"<action>(.*)</action>", reply, re.S
        )


def test_care_is_shown_about_guesses_too():
    found = pairs(SudokuCourse(count=400, habits_from=1.0, habits_before=0.0))
    assert sum("Guess." in prompt and reply.startswith("Work.") for prompt, reply in found) > 20
    assert not any(reply.startswith("Guess.") for prompt, reply in found if prompt.startswith("Plan:"))
    assert CAREFUL.work == CAREFUL.check == 1.0


def test_test_puzzles_are_not_shown(monkeypatch):
    played = []
    episode = Demonstrators.episode
    monkeypatch.setattr(
        Demonstrators,
        "episode",
        lambda self, puzzle, habits: played.append(puzzle) or episode(self, puzzle, habits),
    )
    make_demos(SudokuCourse(count=60, reuse=1), 0)
    exclude = {canonical(puzzle.clues) for puzzle in played[::2]}
    played.clear()
    make_demos(SudokuCourse(count=60, reuse=1), 0, exclude)
    assert played and not exclude & {canonical(puzzle.clues) for puzzle in played}


def test_a_seed_names_the_demonstrations():
    course = SudokuCourse(count=20, difficulty=Kind(4, "easy"))
    assert pairs(course) == pairs(course) != pairs(course, seed=1)
