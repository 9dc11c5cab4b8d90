"""Who speaks when: the Tool agent proposes moves, or writes a program that does, and the Executor acts."""

from __future__ import annotations

from agent_system.orchestra import BaseOrchestra
from agent_system.registry import OrchestraRegistry
from agent_system.turn import Turn
from agent_system.workflows.sokoban.agents import EXECUTOR, TOOL
from agent_system.workflows.sokoban.options import SokobanOptions


@OrchestraRegistry.register("sokoban")
class SokobanOrchestra(BaseOrchestra):
    """One proposal and one action a turn; the Executor's moves are the team's."""

    agents = (TOOL, EXECUTOR)
    config_class = SokobanOptions

    def __init__(self, config: SokobanOptions | None = None) -> None:
        super().__init__(config)
        self.uses_sandbox = self.config.tool == "code"

    async def run(self, turn: Turn) -> str:
        await turn.act(TOOL)
        acted = await turn.act(EXECUTOR)
        return acted.action
