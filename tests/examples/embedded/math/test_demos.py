import random
import re

from examples.embedded.math.demos import (
    CAREFUL,
    Demonstrators,
    Habits,
    MathCourse,
    make_demos,
    verdict_reply,
    with_slip,
)
from examples.embedded.math.tasks import generate


def test_careful_demonstrations_are_right():
    rng = random.Random(0)
    for problem in generate(200, seed=1):
        prompt, reply = (message["content"] for message in Demonstrators().demo(rng, problem, CAREFUL))
        if prompt.startswith("Solve:"):
            assert reply == problem.worked_solution()
            continue
        claimed = int(re.findall(r"\\boxed\{(\d+)\}", prompt)[-1])
        verdict = "approve" if claimed == problem.answer else "reject"
        compared = f"I get {problem.answer}, Solver {claimed}, off by {abs(problem.answer - claimed)}."
        assert reply == f"{problem.working()} {compared} <verify>{verdict}</verify>"


def test_prompts_are_those_of_the_agents():
    problem = generate(1, seed=2)[0]
    demonstrators = Demonstrators()
    prompts = [demonstrators.demo(random.Random(i), problem, Habits())[0]["content"] for i in range(40)]
    assert any(prompt == f"Solve: {problem.question}" for prompt in prompts)
    assert any(prompt.startswith(f"Check: {problem.question}\nSolver: ") for prompt in prompts)
    assert any(
        re.search(r"^Solve: .*\nSolver: .*\nVerifier: .*<verify>reject</verify>$", prompt, re.S)
        for prompt in prompts
    )


def test_habits_rule_only_the_last_part():
    course = MathCourse(count=400, easy=0.25, habits_from=0.5, habits_before=0.0)
    replies = [conversation[1]["content"] for conversation in make_demos(course, seed=0)]
    assert all("=" in reply for reply in replies[:200])
    careless = sum("=" not in reply for reply in replies[200:])
    assert 80 < careless < 160


def test_demonstrations_avoid_the_excluded_questions():
    course = MathCourse(count=60)
    excluded = frozenset(problem.question for problem in generate(30, seed=8))
    assert not any(
        question in str(conversation)
        for conversation in make_demos(course, seed=0, exclude=excluded)
        for question in excluded
    )


def test_a_slip_is_consistent_but_wrong():
    rng = random.Random(1)
    slipped = [
        s
        for problem in generate(100, seed=3)
        if (s := with_slip(rng, problem)) and s.answer != problem.answer
    ]
    assert len(slipped) > 60


def test_a_skimming_verifier_mostly_approves():
    problem = generate(1, seed=4)[0]
    rng = random.Random(0)
    replies = [verdict_reply(rng, problem, problem.answer + 1, Habits(recompute=0.0)) for _ in range(200)]
    assert 150 < replies.count("Looks fine. <verify>approve</verify>") < 190
