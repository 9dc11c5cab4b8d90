"""A Coder and a Filer with one product: the Coder answers a letter by an arbitrary table, the Filer by a
rule; a plug-in of `measure.py`.

A product has a colour and a kind. Its code is an arbitrary letter per product, so the Coder must learn every
product; its shelf depends on the colour alone, so the Filer must learn one letter per colour. Neither sees
the other's reply, and the prompt names the role.
"""

from __future__ import annotations

import asyncio
import re
from typing import ClassVar

from agent_system.agent import BaseAgent
from agent_system.environment import BaseEnv, Observation, Outcome, Task
from agent_system.orchestra import BaseOrchestra
from agent_system.projection import Projection, strip_thinking
from agent_system.registry import AgentRegistry, EnvRegistry, OrchestraRegistry
from agent_system.turn import Turn

NAME = "depot"
CODER, FILER = "Coder", "Filer"
AGENTS = (CODER, FILER)
LETTERS = "ABCDEFGH"


class DepotAgent(BaseAgent):
    """A role whose replies are `<word> <letter>`; `word` begins its prompts too."""

    word: ClassVar[str]

    def project(self, text: str) -> Projection:
        """Take a reply such as `code C` as the action `C`, only with the word of this role."""
        visible = strip_thinking(text)
        found = re.fullmatch(rf"{self.word} ([{LETTERS}])", visible)
        return Projection(found[1] if found else "", found is not None, text=visible)


@AgentRegistry.register(CODER, orchestra=NAME)
class Coder(DepotAgent):
    """Answers the code of a product."""

    word = "code"
    prompt = "code: {env_prompt}"


@AgentRegistry.register(FILER, orchestra=NAME)
class Filer(DepotAgent):
    """Answers the shelf of a product."""

    word = "shelf"
    prompt = "shelf: {env_prompt}"


@OrchestraRegistry.register(NAME)
class DepotOrchestra(BaseOrchestra):
    """Both reply at the same time."""

    agents = AGENTS

    async def run(self, turn: Turn) -> tuple[str, ...]:
        replies = await asyncio.gather(*(turn.act(agent_id) for agent_id in self.agents))
        return tuple(reply.action for reply in replies)


@EnvRegistry.register(NAME)
class DepotEnv(BaseEnv):
    """One product, one turn. A right letter has the local reward 1; two of them the team reward 1.

    The ground truth is the letter of the code and that of the shelf, such as `CF`. `info`: `success`;
    `coder/right` and `filer/right`; `coder/shelf` (the Coder answered the letter of the shelf, and the code
    is another one).
    """

    blocking = False

    def reset(self, task: Task) -> Observation:
        self._letters = dict(zip(AGENTS, str(task.ground_truth), strict=True))
        return Observation(task.prompt)

    def act(self, agent_id: str, action: str) -> Outcome:
        return Outcome(local=float(action == self._letters[agent_id]))

    def step(self, action: tuple[str, ...]) -> Outcome:
        right = {
            agent_id: given == self._letters[agent_id] for agent_id, given in zip(AGENTS, action, strict=True)
        }
        success = float(all(right.values()))
        info = {"success": success} | {
            f"{agent_id.lower()}/right": float(value) for agent_id, value in right.items()
        }
        info["coder/shelf"] = float(not right[CODER] and action[0] == self._letters[FILER])
        return Outcome(team=success, done=True, info=info)
