"""Two colleagues with one problem of two parts: each answers one part, and neither sees the other's reply; a
plug-in of `measure.py`.

The team succeeds when the two replies are right and about different parts, so the colleagues must divide the
work. Without names in the prompts both read the same text: one policy then gives both the same distribution
over the two parts, and covers both parts in at most half of the episodes, 2p(1-p). That is the XOR game of Fu
et al. (2022, arXiv 2206.07505), in which policies of their own reach the optimum.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Any

from agent_system.agent import BaseAgent
from agent_system.environment import BaseEnv, Observation, Outcome, Task
from agent_system.orchestra import BaseOrchestra
from agent_system.projection import Projection, strip_thinking
from agent_system.registry import AgentRegistry, EnvRegistry, OrchestraRegistry
from agent_system.turn import Turn

COLLEAGUES = ("Colleague A", "Colleague B")
NAME = "colleagues"
ADD, SUBTRACT = "apples", "pears"
_REPLY = re.compile(rf"({ADD}|{SUBTRACT}) [-+\d]+=(\d+)")


@dataclass(frozen=True)
class ColleaguesOptions:
    """Options under `agent.orchestra.colleagues`.

    Attributes:
        named: begin each prompt with the colleague's letter, so that the prompts differ.
    """

    named: bool = False


def part(text: str) -> Projection:
    """Take a reply such as `apples 26+7=33` as the action `apples 33`."""
    visible = strip_thinking(text)
    found = _REPLY.fullmatch(visible)
    return Projection(" ".join(found.groups()) if found else "", found is not None, text=visible)


class Colleague(BaseAgent):
    """The role of both; only the letter distinguishes the prompts, if they are named."""

    projection = part

    def __init__(self, agent_id: str, config: Any = None) -> None:
        super().__init__(agent_id, config)
        if isinstance(config, ColleaguesOptions) and config.named:
            self.prompt = f"{agent_id[-1]}: {self.prompt}"


for _agent_id in COLLEAGUES:
    AgentRegistry.register(_agent_id, orchestra=NAME)(Colleague)


@OrchestraRegistry.register(NAME)
class ColleaguesOrchestra(BaseOrchestra):
    """Both colleagues reply at the same time."""

    agents = COLLEAGUES
    config_class = ColleaguesOptions

    async def run(self, turn: Turn) -> tuple[str, ...]:
        replies = await asyncio.gather(*(turn.act(agent_id) for agent_id in self.agents))
        return tuple(reply.action for reply in replies)


@EnvRegistry.register(NAME)
class ColleaguesEnv(BaseEnv):
    """One problem, one turn. A right reply, about either part, has the local reward 1; two of them about
    different parts the team reward 1.

    `info`: `success`; `covered` (the replies are about different parts, right or wrong); `right` (share of
    right replies); `a/adds` and `b/adds` (the colleague replied about the part that needs an addition).
    """

    blocking = False

    def reset(self, task: Task) -> Observation:
        self._answers = str(task.ground_truth).split(", ")
        return Observation(task.prompt)

    def act(self, agent_id: str, action: str) -> Outcome:
        del agent_id
        return Outcome(local=float(action in self._answers))

    def step(self, action: tuple[str, ...]) -> Outcome:
        success = set(action) == set(self._answers)
        parts = [reply.split(" ")[0] for reply in action]
        info = {
            "success": float(success),
            "covered": float(set(parts) == {ADD, SUBTRACT}),
            "right": sum(reply in self._answers for reply in action) / len(action),
        }
        adds = {
            f"{agent_id[-1].lower()}/adds": float(kind == ADD)
            for agent_id, kind in zip(COLLEAGUES, parts, strict=True)
        }
        return Outcome(team=float(success), done=True, info=info | adds)
