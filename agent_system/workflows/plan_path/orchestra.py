"""Who speaks when: the Tool proposes moves, or writes a program that does, and the Executor decides which are made."""

from __future__ import annotations

from agent_system.orchestra import BaseOrchestra
from agent_system.registry import OrchestraRegistry
from agent_system.turn import Turn
from agent_system.workflows.plan_path.agents import EXECUTOR, TOOL
from agent_system.workflows.plan_path.options import PlanPathOptions


@OrchestraRegistry.register("plan_path")
class PlanPathOrchestra(BaseOrchestra):
    """One proposal and one decision a turn; the next turn starts where the Executor's moves ended."""

    agents = (TOOL, EXECUTOR)
    config_class = PlanPathOptions

    def __init__(self, config: PlanPathOptions | None = None) -> None:
        super().__init__(config)
        self.uses_sandbox = self.config.tool == "code"

    async def run(self, turn: Turn) -> str:
        await turn.act(TOOL)
        return (await turn.act(EXECUTOR)).action
