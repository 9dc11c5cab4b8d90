"""Who speaks when: propose, judge, and again while the verdict is `reject`."""

from __future__ import annotations

from agent_system.orchestra import BaseOrchestra
from agent_system.registry import OrchestraRegistry
from agent_system.turn import Turn
from agent_system.workflows.math.agents import SOLVER, VERIFIER
from agent_system.workflows.math.options import MathOptions


@OrchestraRegistry.register("math")
class MathOrchestra(BaseOrchestra):
    """Solver and Verifier, up to `max_loop_num` solutions; the last solution is the team's answer.

    The Verifier is not asked about the last solution (unless `verify_last`): nothing could follow from its verdict.
    """

    agents = (SOLVER, VERIFIER)
    config_class = MathOptions

    async def run(self, turn: Turn) -> str:
        last = self.config.max_loop_num
        unparsed = 0
        for loop in range(1, last + 1):
            solution = await turn.act(SOLVER)
            turn.info["loops"] = loop
            if loop == last and not self.config.verify_last:
                break
            judgement = await turn.act(VERIFIER)
            unparsed += not judgement.fields["parsed"]
            turn.info["verifier/unparsed"] = unparsed
            if judgement.fields["approved"]:
                break
        return solution.action
