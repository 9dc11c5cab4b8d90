"""A Finder and a Checker name the animal of two words: the workflow of `run_smollm2.sh`, for a small
pretrained model.
"""

from __future__ import annotations

import re

from agent_system import (
    AgentRegistry,
    BaseAgent,
    BaseEnv,
    BaseOrchestra,
    EnvRegistry,
    Observation,
    OrchestraRegistry,
    Outcome,
    Task,
    Turn,
)

NAME = "animals"
FINDER = "Finder"
CHECKER = "Checker"


@AgentRegistry.register(FINDER, orchestra=NAME)
class Finder(BaseAgent):
    """Answers first."""

    prompt = "Words: {env_prompt}\nWrite the one that is an animal. Answer with that word only."


@AgentRegistry.register(CHECKER, orchestra=NAME)
class Checker(BaseAgent):
    """Reads the Finder's answer; its own is the answer of the team."""

    prompt = "Words: {env_prompt}\n{team_context}\nCheck this. Write the word that is an animal. Answer with that word only."


@OrchestraRegistry.register(NAME)
class Animals(BaseOrchestra):
    """The Finder, then the Checker."""

    agents = (FINDER, CHECKER)

    async def run(self, turn: Turn) -> str:
        await turn.act(FINDER)
        reply = await turn.act(CHECKER)
        return reply.action


@EnvRegistry.register(NAME)
class TwoWords(BaseEnv):
    """One pair of words. A reply that names the animal, and nowhere the other word, is right.

    The ground truth is the animal and the other word, such as `horse/table`. Each right reply has the local
    reward 1, the last one the team reward 1.
    """

    blocking = False

    def reset(self, task: Task) -> Observation:
        self._words = str(task.ground_truth).split("/") if task.judged else []
        return Observation(task.prompt)

    @classmethod
    def question(cls, text: str) -> Task:
        """Return the task of any words, without a ground truth."""
        return Task("question", text, judged=False)

    def act(self, agent_id: str, action: str) -> Outcome:
        return Outcome(local=float(self._is_right(action)))

    def step(self, action: str) -> Outcome:
        success = self._is_right(action)
        return Outcome(team=float(success), done=True, info={"success": success})

    def _is_right(self, text: str) -> bool:
        if not self._words:  # the question of a person
            return False
        animal, other = (re.search(rf"\b{word}\b", text.lower()) for word in self._words)
        return animal is not None and other is None
