import random
from dataclasses import replace

import pytest

from agent_system.workflows.search.env import ANSWER, SEARCH, VERIFIER
from examples.embedded.search.demos import (
    CAREFUL,
    Demonstrators,
    SearchCourse,
    make_demos,
    play,
    reply,
    success_rate,
)
from examples.embedded.search.tasks import names_of

COURSE = SearchCourse(count=600)
NAMES = names_of("demos", 0)


def scenes(course: SearchCourse = COURSE, count: int = 300):
    rng = random.Random(1)
    return [scene for _ in range(count) for scene in play(rng, NAMES, course)]


def test_care_answers_every_question_and_the_habits_less_than_half():
    assert success_rate(replace(COURSE, habits=CAREFUL), 0) == 1
    assert 0.3 < success_rate(COURSE, 0) < 0.5


def test_a_careful_reply_is_valid_and_says_what_is_missing_or_known():
    rng, agents = random.Random(0), Demonstrators().agents
    for scene in scenes():
        said = agents[scene.agent_id].project(reply(rng, scene, CAREFUL))
        assert said.valid
        if scene.agent_id == VERIFIER:
            assert said.fields["enough"] == (scene.missing is None)
        elif scene.agent_id == SEARCH:
            assert said.action == scene.missing.query
        elif scene.missing is None:
            assert said.action == scene.question.answer


def test_what_is_read_off_was_found_and_a_guess_is_the_name_in_the_question():
    rng, agents = random.Random(0), Demonstrators()
    answers = [scene for scene in scenes() if scene.agent_id == ANSWER and scene.missing is None]
    for scene in answers:
        prompt, said = (message["content"] for message in agents.demo(rng, scene, CAREFUL))
        assert f"is {scene.question.answer}." in prompt
        assert said == f"Read {scene.question.hops[-1]} <answer> {scene.question.answer}</answer>"
    said = reply(rng, answers[0], replace(CAREFUL, read=0.0))
    assert said == f"Guess <answer> {answers[0].question.hops[0].subject}</answer>"


def test_care_comes_first_and_habits_last():
    demos = make_demos(COURSE, 0)
    habit = [
        m[1]["content"].startswith(("Sure", "Just", "Guess"))
        for m in demos
        if not m[0]["content"].startswith("Answer")
    ]
    early, late = habit[: len(habit) // 2], habit[-len(habit) // 5 :]
    assert sum(early) / len(early) < 0.1 < sum(late) / len(late)


def test_questions_to_leave_out_are_left_out():
    demos = make_demos(replace(COURSE, count=50), 0)
    texts = {m[0]["content"].split(": ", 1)[1].split("\n")[0] for m in demos}
    left_out = sorted(texts)[:5]
    again = make_demos(replace(COURSE, count=50), 0, left_out)
    assert len(again) == 50
    assert not any(text in m[0]["content"] for m in again for text in left_out)


@pytest.mark.parametrize("word", ["Verify", "Search", "Answer"])
def test_every_role_is_shown(word):
    assert sum(m[0]["content"].startswith(word) for m in make_demos(COURSE, 0)) > 100
