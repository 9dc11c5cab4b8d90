"""A Solver says the code of a product, a Checker approves it or has it said again, a Filer says the
shelf.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from agent_system.agent import BaseAgent, Entry
from agent_system.errors import AgentSystemError
from agent_system.orchestra import BaseOrchestra
from agent_system.projection import Projection, strip_thinking
from agent_system.registry import AgentRegistry, OrchestraRegistry
from agent_system.turn import Turn
from agent_system.workflows.lookup.world.generate import SHELF
from agent_system.workflows.lookup.world.products import LETTERS
from agent_system.workflows.single import SINGLE

SOLVER = "Solver"
CHECKER = "Checker"
FILER = "Filer"
RIGHT = "right"
WRONG = "wrong"


@dataclass(frozen=True)
class LookupOptions:
    """Options under `agent.orchestra.lookup`.

    Attributes:
        tries: most replies of the Solver; the last one is not checked, so with 1 there is no
            Checker.
    """

    tries: int = 3

    def __post_init__(self) -> None:
        if self.tries < 1:
            raise AgentSystemError(f"agent.orchestra.lookup.tries must be 1 or more, found {self.tries}")


class LookupAgent(BaseAgent):
    """A role that reads the last letter that was said in the turn, and whose action is the last of
    its words that a reply has.

    Attributes:
        words: the words.
    """

    words: ClassVar[Sequence[str]] = LETTERS

    def team_context(self, entries: Sequence[Entry]) -> str:
        letters = [entry.action for entry in entries if entry.agent_id == SOLVER]
        return f" {letters[-1]}" if letters else ""

    def project(self, text: str) -> Projection:
        visible = strip_thinking(text)
        found_words = re.findall(rf"(?<!\w)(?:{'|'.join(self.words)})(?!\w)", visible, re.IGNORECASE)
        by_lower = {word.lower(): word for word in self.words}
        action = by_lower[found_words[-1].lower()] if found_words else ""
        return Projection(action, bool(action), text=visible)


@AgentRegistry.register(SINGLE, orchestra="single", env="lookup")
@AgentRegistry.register(SOLVER, orchestra="lookup")
class LookupSolver(LookupAgent):
    """Says the code of a product, every time anew. As a single agent, what is asked."""

    prompt = "Code: {env_prompt}"


@AgentRegistry.register(CHECKER, orchestra="lookup")
class LookupChecker(LookupAgent):
    """Says whether the last letter is the product's code."""

    prompt = "Check: {env_prompt}{team_context}"
    words = (RIGHT, WRONG)


@AgentRegistry.register(FILER, orchestra="lookup")
class LookupFiler(LookupAgent):
    """Says the shelf of the last letter."""

    prompt = "File:{team_context}"


@OrchestraRegistry.register("lookup")
class LookupOrchestra(BaseOrchestra):
    """Codes until one is approved; then, if the shelf is asked for, the Filer."""

    config_class = LookupOptions

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.agents = (SOLVER, FILER) if self.config.tries == 1 else (SOLVER, CHECKER, FILER)

    async def run(self, turn: Turn) -> str:
        for number in range(1, self.config.tries + 1):
            reply = await turn.act(SOLVER)
            turn.info["tries"] = number
            if number == self.config.tries:
                break
            verdict = await turn.act(CHECKER)
            if verdict.action == RIGHT:
                break
        if turn.observation.info["asks"] == SHELF:
            reply = await turn.act(FILER)
        return reply.action
