"""A document that is longer than the context of one call: a Planner that delegates its chapters,
Finders that read one each, and a Counter that combines what they say; a plug-in of `measure.py`.

A document has three to six chapters of words. The question is in how many of them the word `gold`
stands. All agents have the same `data.max_prompt_length`, which holds two chapters. The Reader, the
baseline, reads what fits of all of them and answers alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from agent_system.agent import BaseAgent, Entry
from agent_system.children import Child, spawn, task_lines
from agent_system.environment import BaseEnv, Observation, Outcome, Task
from agent_system.orchestra import BaseOrchestra
from agent_system.projection import Projection, strip_thinking
from agent_system.registry import AgentRegistry, EnvRegistry, OrchestraRegistry
from agent_system.turn import Turn

NAME = "library"
ALONE = "library_alone"
PLANNER, FINDER, COUNTER, READER = "Planner", "Finder", "Counter", "Reader"
AGENTS = (PLANNER, FINDER, COUNTER)
MOST_CHAPTERS = 6
YES, NO = "yes", "no"


def reading(pattern: str, text: str) -> Projection:
    """Return a reply as the action, valid if all of it has the form of `pattern`."""
    visible = strip_thinking(text)
    valid = re.fullmatch(pattern, visible) is not None
    return Projection(visible if valid else "", valid, text=visible)


@AgentRegistry.register(PLANNER, orchestra=NAME)
class Planner(BaseAgent):
    """Writes a line for each chapter that is to be read, such as `gold 3`."""

    prompt = "plan {env_prompt}"

    def project(self, text: str) -> Projection:
        return reading(r"[a-z]+ \d(\n[a-z]+ \d)*", text)


@AgentRegistry.register(FINDER, orchestra=NAME)
class Finder(BaseAgent):
    """Says whether a word stands in a chapter."""

    prompt = "find {task}: {chapter}"

    def project(self, text: str) -> Projection:
        return reading(f"{YES}|{NO}", text)


@AgentRegistry.register(COUNTER, orchestra=NAME)
class Counter(BaseAgent):
    """Answers with the number of chapters, from what the Finders say."""

    prompt = "count {findings}"

    def project(self, text: str) -> Projection:
        return reading(r"\d", text)


@AgentRegistry.register(READER, orchestra=ALONE)
class Reader(BaseAgent):
    """Answers with the number of chapters, from what it sees of the document."""

    prompt = "read {env_prompt}: {team_context}"

    def team_context(self, entries: Sequence[Entry]) -> str:
        return " / ".join(entry.text for entry in entries)

    def project(self, text: str) -> Projection:
        return reading(r"\d", text)


@OrchestraRegistry.register(NAME)
class Library(BaseOrchestra):
    """Planner, a Finder for each of its lines, Counter."""

    agents = AGENTS

    async def run(self, turn: Turn) -> Any:
        chapters = turn.observation.info["chapters"]
        right: list[bool] = []

        async def find(child: Child, task: str) -> str:
            word, number = task.split()
            if not 1 <= int(number) <= len(chapters):
                return NO
            chapter = chapters[int(number) - 1]
            reply = await child.act(FINDER, task=word, chapter=chapter)
            right.append(reply.action == (YES if word in chapter.split() else NO))
            return str(reply.action) or NO

        plan = await turn.act(PLANNER)
        findings = await spawn(turn, find, task_lines(plan.action), most=MOST_CHAPTERS)
        count = await turn.act(COUNTER, findings=" ".join(findings))
        word = turn.observation.text.split()[0]
        whole = sorted(task_lines(plan.action)) == [f"{word} {n + 1}" for n in range(len(chapters))]
        turn.info |= {"plan/whole": float(whole), "children": float(len(findings))}
        turn.info["counter/right"] = float(count.action == str(findings.count(YES)))
        turn.info["finder/right"] = sum(right) / max(len(right), 1)
        return count.action


@OrchestraRegistry.register(ALONE)
class LibraryAlone(BaseOrchestra):
    """The Reader, to which the chapters are notes: the oldest are left out where they do not fit."""

    agents = (READER,)

    async def run(self, turn: Turn) -> Any:
        for number, chapter in enumerate(turn.observation.info["chapters"], start=1):
            turn.note(f"chapter {number}", chapter)
        return (await turn.act(READER)).action


@EnvRegistry.register(NAME)
class LibraryEnv(BaseEnv):
    """One question, one turn; the team reward is 1 for the right number."""

    blocking = False

    def reset(self, task: Task) -> Observation:
        self._answer = str(task.ground_truth)
        return Observation(task.prompt, {"chapters": list(task.extra["chapters"])})

    def step(self, action: Any) -> Outcome:
        success = float(action == self._answer)
        return Outcome(team=success, done=True, info={"success": success})
