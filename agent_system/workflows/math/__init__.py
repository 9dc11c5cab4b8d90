"""Mathematics by a team of two: the Solver Agent proposes a solution, the Verifier Agent approves
or rejects it.
"""

from agent_system.workflows.math.env import MathEnv, MathEnvOptions
from agent_system.workflows.math.team import (
    SOLVER,
    VERIFIER,
    MathOptions,
    MathOrchestra,
    SolverAgent,
    VerifierAgent,
)

__all__ = [
    "SOLVER",
    "VERIFIER",
    "MathEnv",
    "MathEnvOptions",
    "MathOptions",
    "MathOrchestra",
    "SolverAgent",
    "VerifierAgent",
]
