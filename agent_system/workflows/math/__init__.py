"""Mathematics by a team of two: the Solver Agent proposes, the Verifier Agent approves or rejects."""

from agent_system.workflows.math.agents import SOLVER, VERIFIER, SolverAgent, VerifierAgent
from agent_system.workflows.math.env import MathEnv, MathEnvOptions
from agent_system.workflows.math.options import MathOptions
from agent_system.workflows.math.orchestra import MathOrchestra

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
