"""Who speaks when: both at the same time, turn after turn until they agree."""

from __future__ import annotations

import asyncio

from agent_system.orchestra import BaseOrchestra
from agent_system.registry import OrchestraRegistry
from agent_system.turn import Turn
from agent_system.workflows.math_tool.agents import REASONER, TOOL_USER
from agent_system.workflows.math_tool.options import MathToolOptions


@OrchestraRegistry.register("math_tool")
class MathToolOrchestra(BaseOrchestra):
    """One answer by reasoning and one by a program a turn; the environment compares them."""

    agents = (REASONER, TOOL_USER)
    config_class = MathToolOptions

    async def run(self, turn: Turn) -> str:
        reasoned, _ = await asyncio.gather(turn.act(REASONER), turn.act(TOOL_USER))
        return reasoned.action
