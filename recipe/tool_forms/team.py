"""A Clerk who looks a price up with a tool and a Cashier who writes the bill; a plug-in of `measure.py`.

A price of a held-out pair of item and shop can only be guessed, right in one of eight cases, or looked up:
the Clerk calls `price` with the item and the shop of the question, in the form of the model's own chat
template, and both copy the result.
"""

from __future__ import annotations

import hashlib
import re

from agent_system.agent import BaseAgent
from agent_system.environment import BaseEnv, Observation, Outcome, Task
from agent_system.orchestra import BaseOrchestra
from agent_system.projection import number, raw_text
from agent_system.registry import AgentRegistry, EnvRegistry, OrchestraRegistry
from agent_system.tools import ToolAgent
from agent_system.turn import Turn

NAME = "shops"
CLERK, CASHIER = "Clerk", "Cashier"
ITEMS = ("apples", "bread", "cheese", "fish", "milk", "rice", "salt", "tea")
SHOPS = ("Adams", "Davis", "Grant", "Jackson", "King", "Lewis", "Martin", "Scott")
# Costs of one digit, which is one token in every vocabulary.
COSTS = range(2, 10)
_QUESTION = re.compile(r"What do (\w+) cost at (\w+)\?")


def question(item: str, shop: str) -> str:
    """Return the text of a task."""
    return f"What do {item} cost at {shop}?"


def bill(item: str, shop: str, cost: str) -> str:
    """Return the right bill of a task."""
    return f"{item}, {shop}: {cost}"


def price(item: str, shop: str) -> int:
    """Look up a price.

    Args:
        item: what to buy.
        shop: where.
    """
    if item not in ITEMS or shop not in SHOPS:
        raise ValueError(f"no price of {item} at {shop}")
    return COSTS[int(hashlib.sha256(f"{item} {shop}".encode()).hexdigest(), 16) % len(COSTS)]


@AgentRegistry.register(CLERK, orchestra=NAME)
class Clerk(ToolAgent):
    """Answers with the cost of the item."""

    prompt = "{env_prompt}"
    projection = number
    tools = (price,)
    max_rounds = 2


@AgentRegistry.register(CASHIER, orchestra=NAME)
class Cashier(BaseAgent):
    """Writes the bill from the question and the Clerk's number."""

    prompt = "{env_prompt} It is {cost}."
    projection = raw_text


@OrchestraRegistry.register(NAME)
class ShopsOrchestra(BaseOrchestra):
    """The Clerk answers, then the Cashier."""

    agents = (CLERK, CASHIER)

    async def run(self, turn: Turn) -> str:
        cost = (await turn.act(CLERK)).action
        return (await turn.act(CASHIER, cost=cost or "unknown")).action


@EnvRegistry.register(NAME)
class ShopsEnv(BaseEnv):
    """One question, one turn. Each agent has the local reward 1 for its own right reply: the cost, and the
    bill with the number that it was given. The team's reward is 1 for the right bill.
    """

    blocking = False

    def reset(self, task: Task) -> Observation:
        found = _QUESTION.fullmatch(task.prompt)
        if found is None:
            raise ValueError(f"no question about a price: {task.prompt!r}")
        self._item, self._shop = found.groups()
        self._cost = str(price(self._item, self._shop))
        self._said = "unknown"
        return Observation(task.prompt)

    def act(self, agent_id: str, action: str) -> Outcome:
        if agent_id == CLERK:
            self._said = action or "unknown"
            return Outcome(local=float(action == self._cost))
        return Outcome(local=float(action == bill(self._item, self._shop, self._said)))

    def step(self, action: str) -> Outcome:
        success = float(action == bill(self._item, self._shop, self._cost))
        return Outcome(team=success, done=True, info={"success": success})
