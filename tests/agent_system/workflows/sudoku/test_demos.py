import re

from agent_system.workflows.sudoku.action import parse_action
from agent_system.workflows.sudoku.demos import CAREFUL, Course, Habits, make_demos
from agent_system.workflows.sudoku.generate import Kind, generate
from agent_system.workflows.sudoku.puzzle import canonical, from_text, rows_text
from agent_system.workflows.sudoku.solver import make_puzzle
from agent_system.workflows.sudoku.state import State, apply_action


def played(prompt: str, reply: str) -> State:
    """The board after the plan or action of a reply."""
    lines = prompt.split("\n")
    puzzle = make_puzzle(from_text("".join(lines[1:5]).replace(" ", "")))
    cells = re.fullmatch(r".*<(plan|action)>(.*)</\1>", reply, re.S)
    applied = apply_action(State.start(puzzle), parse_action(cells.group(2), 4), 81)
    assert applied.readable and not applied.illegal
    return applied.state


def pairs(course: Course, seed: int = 0, **more) -> list[tuple[str, str]]:
    return [(c[0]["content"], c[1]["content"]) for c in make_demos(course, seed, **more)]


def test_careful_demonstrations_of_either_role_solve_the_puzzle():
    found = pairs(Course(count=80, habits=CAREFUL))
    assert all(played(prompt, reply).solved for prompt, reply in found)
    assert {prompt[:5] for prompt, _ in found} == {"Plan:", "Fill:"}


def test_the_habits_of_the_last_part_often_fail():
    course = Course(count=400, habits_from=0.5, habits_before=0.0)
    solved = [played(prompt, reply).solved for prompt, reply in pairs(course)]
    assert all(solved[:200])
    assert 0.2 < sum(solved[200:]) / 200 < 0.75


def test_habits_say_how_often_who_takes_care():
    found = pairs(Course(count=300, habits_from=0.0, habits=Habits(work=1.0, check=0.0, explain=False, later=0.0)))
    tool = [reply for prompt, reply in found if prompt.startswith("Plan:")]
    executor = [reply for prompt, reply in found if prompt.startswith("Fill:")]
    assert 100 < len(tool) < 200 and all(reply.startswith("Work. <plan>") for reply in tool)
    assert all(reply.startswith("Copy. <action>") for reply in executor)
    assert not any("Now:" in prompt or "sees" in reply for prompt, reply in found)


def test_a_copy_is_a_copy():
    for prompt, reply in pairs(Course(count=60, habits_from=0.0, habits=Habits(executor=1.0, check=0.0))):
        assert re.findall(r"<plan>(.*)</plan>", prompt) == re.findall(r"<action>(.*)</action>", reply)


def test_later_turns_show_the_clues_and_the_board():
    for prompt, _ in pairs(Course(count=20, habits_from=0.0, habits=Habits(later=1.0, executor=0.0))):
        assert prompt.split("\n")[5] == "Now:" and len(prompt.split("\n")) == 10


def test_test_puzzles_are_not_shown():
    test = generate(40, 8, Kind(4, "medium"))
    shown = {prompt for prompt, _ in pairs(Course(count=60, easy=0.0, reuse=1))}
    exclude = {canonical(puzzle.clues) for puzzle in test}
    assert any(rows_text(puzzle.clues) in prompt for prompt in shown for puzzle in test), "the seeds would meet"
    kept = {prompt for prompt, _ in pairs(Course(count=60, easy=0.0, reuse=1), exclude=exclude)}
    assert not any(rows_text(puzzle.clues) in prompt for prompt in kept for puzzle in test)


def test_a_seed_names_the_demonstrations():
    assert pairs(Course(count=20)) == pairs(Course(count=20)) != pairs(Course(count=20), seed=1)
