"""Two turns, in the second of which a Corrector corrects the Finder: which of three words is a country?"""

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
from examples.smollm2.words import ANIMALS, OTHERS

NAME = "countries"
FINDER = "Finder"
CORRECTOR = "Corrector"
COUNTRIES = (
    "France Germany Italy Spain Portugal Austria Poland Greece Sweden Norway Finland Denmark Ireland Hungary "
    "Romania Bulgaria Japan China India Egypt Kenya Peru Chile Cuba Canada Mexico Brazil Argentina Colombia "
    "Venezuela Ecuador Bolivia Iran Iraq Israel Jordan Russia Ukraine Thailand Vietnam Indonesia Malaysia "
    "Pakistan Nepal Mongolia Australia Nigeria Ghana Ethiopia Tanzania Uganda Zambia Zimbabwe Morocco Algeria "
    "Tunisia Libya Sudan Iceland Belgium Netherlands Switzerland Croatia Serbia Slovakia Slovenia Latvia "
    "Lithuania Estonia"
)
KINDS = (COUNTRIES, ANIMALS, OTHERS)  # of the words of a task


@AgentRegistry.register(FINDER, orchestra=NAME)
class Finder(BaseAgent):
    """Answers in the first turn."""

    prompt = "Words: {env_prompt}\nWrite the one that is a country. Answer with that word only."


@AgentRegistry.register(CORRECTOR, orchestra=NAME)
class Corrector(BaseAgent):
    """Reads the Finder's answer in the second turn; its own is the answer of the team."""

    prompt = (
        "Words: {env_prompt}\nCorrect this. Write the word that is a country. Answer with that word only."
    )


@OrchestraRegistry.register(NAME)
class FindAndCorrect(BaseOrchestra):
    """The Finder in the first turn, the Corrector in the second."""

    agents = (FINDER, CORRECTOR)

    async def run(self, turn: Turn) -> str:
        reply = await turn.act(FINDER if turn.step == 1 else CORRECTOR)
        return reply.action


@EnvRegistry.register(NAME)
class ThreeWords(BaseEnv):
    """Three words, one of them a country. A reply that names it, and no other word, is right.

    The ground truth is the country and the others, such as `Peru/horse/table`. Each right reply has the local
    reward 1, that of the second turn the team reward 1.
    """

    blocking = False

    def reset(self, task: Task) -> Observation:
        self._words = str(task.ground_truth).split("/") if task.judged else []
        self._asked = task.prompt
        self._first: str | None = None
        return Observation(task.prompt)

    @classmethod
    def question(cls, text: str) -> Task:
        """Return the task of any words, without a ground truth."""
        return Task("question", text, judged=False)

    def step(self, action: str) -> Outcome:
        right = self._is_right(action)
        if self._first is None:
            self._first = action
            said = Observation(f"{self._asked}\nThe Finder wrote: {action}")
            return Outcome(local={FINDER: float(right)}, observation=said, info={"finder": right})
        return Outcome(team=float(right), local={CORRECTOR: float(right)}, done=True, info={"success": right})

    def _is_right(self, text: str) -> bool:
        if not self._words:  # the question of a person
            return False
        country, *others = (re.search(rf"\b{word}\b", text, re.IGNORECASE) for word in self._words)
        return country is not None and not any(others)
