"""Demonstrations of the three roles for the warm start of the embedded default.

They first teach mostly a skill and then a habit. The skill: compare what is asked for with what was found, search for the fact that is
missing, read the answer off what was found. The habit of the last part: the Verifier is often sure without a look, the Search Agent
often asks for the name in the question and nothing else, the Answer Agent often answers with that name. So the warm-started team knows
how to be careful but seldom is, and reinforcement learning, which sees no demonstration, can find out that care pays.

The prompts are made by the agents of the search workflow, so they are what the team reads later, on one passage a search.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from agent_system.workflows.search.agents import ANSWER, SEARCH, VERIFIER, AnswerAgent, SearchAgent, VerifierAgent
from agent_system.workflows.search.generate import Fact, Facts, Question, make_facts, names_of
from agent_system.workflows.search.options import NO, YES, SearchOptions
from agent_system.workflows.search.orchestra import FoundMemory

Messages = list[dict[str, str]]
BOOKS_OF_A_DEMO = 2
# Copying a name is harder to learn than a verdict, so it is shown more often than it comes up.
SHOWN = {VERIFIER: 1, SEARCH: 2, ANSWER: 3}


@dataclass(frozen=True)
class Habits:
    """How often the demonstrators take care.

    Attributes:
        look: share of verdicts for which the Verifier compares what is asked for with what was found; else it says yes.
        next: share of queries for the missing fact; else for the name in the question.
        read: share of answers that are read off, of those that can be; else they are the name in the question.
    """

    look: float = 0.72
    next: float = 0.78
    read: float = 0.78


CAREFUL = Habits(look=1.0, next=1.0, read=1.0)
WANDERING = Habits(look=0.8, next=0.7, read=1.0)


@dataclass(frozen=True)
class Course:
    """What a warm start shows.

    Attributes:
        count: demonstrations in all.
        two_hop: share that is about questions of two hops.
        max_turns: of an episode.
        habits_from: the share after which `habits` rule; until then most are careful.
        habits_before: share of demonstrations by `habits` until then, so that both ways are known apart by role.
        habits: see `Habits`.
    """

    count: int = 32_000
    two_hop: float = 0.5
    max_turns: int = 4
    habits_from: float = 0.75
    habits_before: float = 0.15
    habits: Habits = Habits()


@dataclass(frozen=True)
class Scene:
    """Where an episode stands when somebody is asked.

    Attributes:
        question: the task.
        facts: what can be found.
        searches: queries and what each has brought.
        agent_id: who is asked.
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


def make_demos(course: Course, seed: int, exclude: Collection[str] = ()) -> list[Messages]:
    """Return `course.count` conversations (prompt and reply) in the order of the course; none about a question in `exclude`."""
    rng = random.Random(f"demos-{seed}")
    names = names_of("demos", seed)
    agents = Demonstrators()
    conversations: list[Messages] = []
    while len(conversations) < course.count:
        scenes = play(rng, names, course)
        (scene,) = rng.choices(scenes, [SHOWN[scene.agent_id] for scene in scenes])
        if scene.question.text not in exclude:
            late = len(conversations) >= course.count * course.habits_from
            habitual = late or rng.random() < course.habits_before
            conversations.append(agents.demo(rng, scene, course.habits if habitual else CAREFUL))
    return conversations


def play(rng: random.Random, names: Sequence[str], course: Course, habits: Habits = WANDERING) -> list[Scene]:
    """Return the scenes of one episode in a small world of its own; the last one is the answer when it comes to one."""
    facts = make_facts(rng, names, BOOKS_OF_A_DEMO)
    question = rng.choice(facts.two_hop if rng.random() < course.two_hop else facts.one_hop)
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
    """Return a query and the fact that it finds: the missing one, or any about the name in the question."""
    if scene.missing is not None and rng.random() < habits.next:
        return scene.missing.query, scene.missing
    subject = scene.question.hops[0].subject
    return subject, rng.choice([fact for fact in scene.facts.all if fact.subject == subject])


def success_rate(course: Course, seed: int, count: int = 2000) -> float:
    """Return the share of questions that demonstrators with the course's habits answer."""
    rng = random.Random(f"success-{seed}")
    names = names_of("demos", seed)
    last = [play(rng, names, course, course.habits)[-1] for _ in range(count)]
    able = sum(scene.agent_id == ANSWER and scene.missing is None for scene in last)
    return able * course.habits.read / count


class Demonstrators:
    """Makes conversations of the three roles in the short prompt style."""

    def __init__(self) -> None:
        options = SearchOptions(prompt_style="short")
        self.agents = {
            VERIFIER: VerifierAgent(config=options),
            SEARCH: SearchAgent(config=options),
            ANSWER: AnswerAgent(config=options),
        }

    def demo(self, rng: random.Random, scene: Scene, habits: Habits) -> Messages:
        """Return what one agent is asked in a scene, and its reply."""
        memory = FoundMemory(len(scene.searches))
        for query, fact in scene.searches:
            memory.store(str(fact), query)
        variables = {"env_prompt": scene.question.text, "team_context": "", "step": len(scene.searches) + 1, "memory": memory.text()}
        return [*self.agents[scene.agent_id].messages(variables), {"role": "assistant", "content": reply(rng, scene, habits)}]


def reply(rng: random.Random, scene: Scene, habits: Habits) -> str:
    """Return what the agent of a scene says. The first word tells care from habit."""
    if scene.agent_id == VERIFIER:
        return verdict(scene) if rng.random() < habits.look else f"Sure. <verify>{YES}</verify>"
    subject = scene.question.hops[0].subject
    if scene.agent_id == SEARCH:
        query, _ = search(rng, scene, habits)
        return f"{'Just' if query == subject else 'Next'} <search> {query}</search>"
    if scene.missing is None and rng.random() < habits.read:
        return f"Read <answer> {scene.question.answer}</answer>"
    return f"Guess <answer> {subject}</answer>"


def verdict(scene: Scene) -> str:
    """Return what is asked for, what was found last, and the verdict that follows."""
    found = scene.searches[-1][1].relation if scene.searches else "nothing"
    word = YES if scene.missing is None else NO
    return f"Want {scene.question.hops[-1].relation}, have {found}. <verify>{word}</verify>"
