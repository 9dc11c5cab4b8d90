import re

from agent_system.workflows.code import team
from agent_system.workflows.code.world.replies import read_tests
from examples.embedded.code.demos import CAREFUL, CodeCourse, Habits, make_demos, team_success, work
from examples.embedded.code.tasks import generate


def pairs(course: CodeCourse, seed: int = 0, exclude: frozenset[str] = frozenset()) -> list[tuple[str, str]]:
    return [(c[0]["content"], c[1]["content"]) for c in make_demos(course, seed, exclude)]


def test_habits_fail_often_and_care_of_the_coder_never() -> None:
    tasks = generate(300, 11)
    course = CodeCourse()
    assert 0.35 <= team_success(course, Habits(), tasks) <= 0.6
    assert team_success(course, CAREFUL, tasks) == team_success(course, Habits(write_all=1.0), tasks) == 1.0
    assert team_success(course, Habits(work_out=1.0), tasks) > team_success(
        course, Habits(work_out=0.0, guess_right=0.0), tasks
    )


def test_both_roles_are_shown_and_every_reply_can_be_read() -> None:
    found = pairs(CodeCourse(count=400))
    assert len(found) == 400
    coders = [prompt.startswith("Code:") for prompt, _ in found]
    assert 0.35 < sum(coders) / 400 < 0.65 and sum("Last:" in prompt for prompt, _ in found) / 400 > 0.2
    roles = {True: team.CoderAgent(), False: team.TesterAgent()}
    assert all(roles[coder].project(reply).valid for coder, (_, reply) in zip(coders, found, strict=True))


def test_the_last_part_is_habit() -> None:
    found = [reply for prompt, reply in pairs(CodeCourse(count=1600)) if prompt.startswith("Code:")]
    quick = [reply.startswith("Quick.") for reply in found]
    early, late = quick[: len(quick) // 2], quick[-len(quick) // 5 :]
    assert sum(early) / len(early) < 0.25 < 0.5 < sum(late) / len(late)


def test_a_test_that_is_worked_out_is_right() -> None:
    tasks = {task.question: task for task in generate(4000, 0)}
    seen = 0
    for prompt, reply in pairs(CodeCourse(count=600, habits_before=0.0, habits_from=1.0)):
        task = tasks.get(re.sub(r"\nLast:.*", "", prompt.removeprefix("Test: "), flags=re.DOTALL))
        if prompt.startswith("Test:") and task:
            (case,) = read_tests(team.TesterAgent().project(reply).action, "", 8).cases
            given = case.given.split()
            read = (
                given[0]
                if task.source.kind == "word"
                else [int(g) for g in given]
                if len(given) > 1
                else int(given[0])
            )
            assert case == task.case(read) and reply == work(task, read)
            seen += 1
    assert seen > 50


def test_test_tasks_are_not_shown() -> None:
    exclude = frozenset(task.program for task in generate(200, 1))
    questions = {task.question for task in generate(200, 1)}
    course = CodeCourse(count=800)
    shown = [
        {re.split(r"\n", prompt)[0].split(": ", 1)[1] for prompt, _ in pairs(course, 0, e)}
        for e in (frozenset(), exclude)
    ]
    assert shown[0] & questions and not shown[1] & questions


def test_a_seed_names_the_demonstrations() -> None:
    course = CodeCourse(count=40)
    assert pairs(course) == pairs(course) != pairs(course, seed=1)
