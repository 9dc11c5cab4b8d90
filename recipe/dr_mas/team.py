"""The math team with a third role that is seldom called and has rewards of another scale; a plug-in of
`recipe/dr_mas/measure.py`.

The Reviser is called once, and only after a rejection: a right solution earns it `bonus` on top of the team's
reward, so its rewards differ strongly from those of the others, and a task has few samples of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent_system.environment import Outcome
from agent_system.errors import AgentSystemError
from agent_system.orchestra import BaseOrchestra
from agent_system.registry import AgentRegistry, EnvRegistry, OrchestraRegistry
from agent_system.turn import Turn
from agent_system.workflows.math import (
    SOLVER,
    VERIFIER,
    MathEnv,
    MathEnvOptions,
    MathOptions,
    SolverAgent,
    VerifierAgent,
)

REVISER = "Reviser Agent"
NAME = "math_reviser"

AgentRegistry.register(SOLVER, orchestra=NAME)(SolverAgent)
AgentRegistry.register(VERIFIER, orchestra=NAME)(VerifierAgent)
AgentRegistry.register(REVISER, orchestra=NAME)(SolverAgent)


@OrchestraRegistry.register(NAME)
class MathReviserOrchestra(BaseOrchestra):
    """Solver, Verifier and, after a rejection, the Reviser, whose solution is then the team's answer."""

    agents = (SOLVER, VERIFIER, REVISER)
    config_class = MathOptions

    async def run(self, turn: Turn) -> str:
        solution = await turn.act(SOLVER)
        judgement = await turn.act(VERIFIER)
        if judgement.fields["approved"]:
            return solution.action
        return (await turn.act(REVISER)).action


@dataclass(frozen=True)
class ReviserEnvOptions(MathEnvOptions):
    """Options under `env.params`: those of the math environment and `bonus`, the local reward of the Reviser
    for a right solution.
    """

    bonus: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bonus < 0:
            raise AgentSystemError(f"env.params.bonus must be 0 or more, found {self.bonus:g}")


@EnvRegistry.register(NAME)
class MathReviserEnv(MathEnv):
    """The math environment with the local reward `bonus` for a right answer of the Reviser."""

    config_class = ReviserEnvOptions

    async def act(self, agent_id: str, action: str) -> Outcome:
        if agent_id != REVISER:
            return await super().act(agent_id, action)
        return Outcome(local=self.config.bonus * (await self._is_right(action)))
