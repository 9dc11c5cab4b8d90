"""Who speaks when: Coder and Tester, at the same time or one after the other."""

from __future__ import annotations

import asyncio

from agent_system.orchestra import BaseOrchestra
from agent_system.registry import OrchestraRegistry
from agent_system.turn import Turn
from agent_system.workflows.code.agents import CODER, TESTER
from agent_system.workflows.code.options import CodeOptions


@OrchestraRegistry.register("code")
class CodeOrchestra(BaseOrchestra):
    """One program and one set of tests a turn; the environment runs both and says whether there is another turn."""

    agents = (CODER, TESTER)
    config_class = CodeOptions

    async def run(self, turn: Turn) -> str:
        if self.config.order == "simultaneous":
            program, _ = await asyncio.gather(turn.act(CODER), turn.act(TESTER))
        elif self.config.order == "coder_first":
            program = await turn.act(CODER)
            await turn.act(TESTER)
        else:
            await turn.act(TESTER)
            program = await turn.act(CODER)
        return program.action
