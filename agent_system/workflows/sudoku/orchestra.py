"""Who speaks when: a plan, or a program that prints one, then an action."""

from __future__ import annotations

from agent_system.orchestra import BaseOrchestra
from agent_system.registry import OrchestraRegistry
from agent_system.turn import Turn
from agent_system.workflows.sudoku.agents import EXECUTOR, TOOL
from agent_system.workflows.sudoku.options import SudokuOptions


@OrchestraRegistry.register("sudoku")
class SudokuOrchestra(BaseOrchestra):
    """The Tool proposes, the Executor checks and acts; once a turn."""

    agents = (TOOL, EXECUTOR)
    config_class = SudokuOptions

    def __init__(self, config: SudokuOptions | None = None) -> None:
        super().__init__(config)
        self.uses_sandbox = self.config.tool == "code"

    async def run(self, turn: Turn) -> str:
        await turn.act(TOOL)
        action = await turn.act(EXECUTOR)
        return action.action
