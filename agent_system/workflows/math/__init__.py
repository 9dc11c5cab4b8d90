"""Mathematics by a team of two: the Solver Agent proposes, the Verifier Agent approves or rejects."""

from agent_system.workflows.math.env import MathEnv, MathEnvOptions
from agent_system.workflows.math.team import SOLVER, VERIFIER, MathOptions, MathOrchestra, SolverAgent, VerifierAgent

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
