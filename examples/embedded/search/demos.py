"""Demonstrations of the small facts by a Verifier, a Search Agent and an Answer Agent, with one passage per
search.

A careful Verifier compares the question with the facts found. A careful Search Agent searches for the missing
fact, and a careful Answer Agent answers; both first copy the fact with the name that they use: with whole
sentences to copy, a tiny model learns sooner to copy names of two words. By habit, the Verifier approves
without a check, and the others use the name in the question as query and answer.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from agent_system.workflows.search.env import ANSWER, NO, SEARCH, VERIFIER, YES
from agent_system.workflows.search.team import (
    AnswerAgent,
    FoundMemory,
    SearchAgent,
    SearchOptions,
    SearchVerifierAgent,
)
from examples.embedded.course import Course, Messages, World, conversation
from examples.embedded.search.tasks import TASKS, Difficulty, Fact, Facts, Question, make_facts, names_of

BOOKS_OF_A_DEMO = 2
# Weights of the roles: copying a name is harder to learn than a verdict, so these roles are demonstrated more
# often than they act.
WEIGHTS = {VERIFIER: 1, SEARCH: 2, ANSWER: 3}


@dataclass(frozen=True)
class Habits:
    """Probabilities of careful replies.

    Attributes:
        look: share of verdicts for which the Verifier compares the question with the facts found; otherwise
            it says yes.
        next: share of queries for the missing fact; otherwise for the name in the question.
        read: share of answers copied from a known fact; otherwise they are the name in the question.
    """

    look: float = 0.66
    next: float = 0.72
    read: float = 0.72


CAREFUL = Habits(look=1.0, next=1.0, read=1.0)
WANDERING = Habits(look=0.8, next=0.7, read=1.0)


@dataclass(frozen=True)
class SearchCourse(Course):
    """See `Course`.

    Attributes:
        max_turns: turns of an episode.
    """

    count: int = 24_000
    batch_size: int = 16
    habits: Habits = Habits()
    careful: Habits = CAREFUL
    difficulty: Difficulty = field(default_factory=Difficulty)
    max_turns: int = 4


@dataclass(frozen=True)
class Scene:
    """State of an episode at a call.

    Attributes:
        question: the task.
        facts: facts of the world.
        searches: queries and the fact that each has found.
        agent_id: the agent that is called.
    """

    question: Question
    facts: Facts
    searches: tuple[tuple[str, Fact], ...]
    agent_id: str

    @property
    def missing(self) -> Fact | None:
        """The next fact that the answer needs, or None when all are known."""
        known = {fact for _, fact in self.searches}
        return next((fact for fact in self.question.hops if fact not in known), None)


def make_demos(course: SearchCourse, seed: int, exclude: Collection[str] = ()) -> list[Messages]:
    """Return the conversations of the course; none about a question in `exclude`."""
    rng = random.Random(f"demos-{seed}")
    agents = Demonstrators()
    scenes = draw_scenes(rng, names_of("demos", seed), course, exclude)
    return course.conversations(rng, scenes, lambda scene, habits: [agents.demo(rng, scene, habits)])


def draw_scenes(
    rng: random.Random, names: Sequence[str], course: SearchCourse, exclude: Collection[str]
) -> Iterator[Scene]:
    """Draw an infinite sequence of scenes, one per episode, none about a question in `exclude`."""
    while True:
        scenes = play(rng, names, course)
        (scene,) = rng.choices(scenes, [WEIGHTS[scene.agent_id] for scene in scenes])
        if scene.question.text not in exclude:
            yield scene


def play(
    rng: random.Random, names: Sequence[str], course: SearchCourse, habits: Habits = WANDERING
) -> list[Scene]:
    """Return the scenes of one episode in a new small world; the last one is the answer if the episode has
    one.
    """
    facts = make_facts(rng, names, BOOKS_OF_A_DEMO)
    question = rng.choice(facts.two_hop if rng.random() < course.difficulty.two_hop else facts.one_hop)
    scene = Scene(question, facts, (), VERIFIER)
    scenes: list[Scene] = []
    for _ in range(course.max_turns):
        scenes.append(scene)
        if scene.missing is None or rng.random() >= habits.look:
            return [*scenes, replace(scene, agent_id=ANSWER)]
        scenes.append(replace(scene, agent_id=SEARCH))
        query, fact = search(rng, scene, habits)
        scene = replace(scene, searches=(*scene.searches, (query, fact)))
    return scenes


def search(rng: random.Random, scene: Scene, habits: Habits) -> tuple[str, Fact]:
    """Return a query and the fact that it finds: the missing one, or a random one about the name in the
    question.
    """
    if scene.missing is not None and rng.random() < habits.next:
        return scene.missing.query, scene.missing
    subject = scene.question.hops[0].subject
    return subject, rng.choice([fact for fact in scene.facts.all if fact.subject == subject])


def success_rate(course: SearchCourse, seed: int, count: int = 2000) -> float:
    """Return the share of questions that demonstrators with the course's habits answer correctly."""
    rng = random.Random(f"success-{seed}")
    names = names_of("demos", seed)
    last = [play(rng, names, course, course.habits)[-1] for _ in range(count)]
    answerable = sum(scene.agent_id == ANSWER and scene.missing is None for scene in last)
    return answerable * course.habits.read / count


class Demonstrators:
    """Demonstrators of the three roles in the short prompt style."""

    def __init__(self) -> None:
        options = SearchOptions(prompt_style="short")
        self.agents = {
            VERIFIER: SearchVerifierAgent(config=options),
            SEARCH: SearchAgent(config=options),
            ANSWER: AnswerAgent(config=options),
        }

    def demo(self, rng: random.Random, scene: Scene, habits: Habits) -> Messages:
        """Return the prompt of the agent of a scene, and its reply."""
        memory = FoundMemory(len(scene.searches))
        for query, fact in scene.searches:
            memory.store(str(fact), query)
        step, text = len(scene.searches) + 1, reply(rng, scene, habits)
        return conversation(
            self.agents[scene.agent_id], scene.question.text, text, step=step, memory=memory.text()
        )


def reply(rng: random.Random, scene: Scene, habits: Habits) -> str:
    """Return the reply of the agent of a scene. The first word distinguishes careful and habitual replies."""
    if scene.agent_id == VERIFIER:
        return verdict(scene) if rng.random() < habits.look else f"Sure. <verify>{YES}</verify>"
    subject = scene.question.hops[0].subject
    if scene.agent_id == SEARCH:
        query, _ = search(rng, scene, habits)
        known = f"{scene.question.hops[0]} " if scene.missing in scene.question.hops[1:] else ""
        return (
            f"Just <search> {query}</search>"
            if query == subject
            else f"Next {known}<search> {query}</search>"
        )
    if scene.missing is None and rng.random() < habits.read:
        return f"Read {scene.question.hops[-1]} <answer> {scene.question.answer}</answer>"
    return f"Guess <answer> {subject}</answer>"


def verdict(scene: Scene) -> str:
    """Return a reply with the relation of the question, the relation found last, and the resulting
    verdict.
    """
    found = scene.searches[-1][1].relation if scene.searches else "nothing"
    word = YES if scene.missing is None else NO
    return f"Want {scene.question.hops[-1].relation}, have {found}. <verify>{word}</verify>"


WORLD = World(SearchCourse(), TASKS, make_demos)
