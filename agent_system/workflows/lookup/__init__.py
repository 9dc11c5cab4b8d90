"""Products by a team of three: the Solver says a code, the Checker approves it, the Filer says the
shelf.
"""

from agent_system.workflows.lookup.env import LookupEnv, LookupEnvOptions
from agent_system.workflows.lookup.team import (
    CHECKER,
    FILER,
    SOLVER,
    LookupChecker,
    LookupFiler,
    LookupOptions,
    LookupOrchestra,
    LookupSolver,
)

__all__ = [
    "CHECKER",
    "FILER",
    "SOLVER",
    "LookupChecker",
    "LookupEnv",
    "LookupEnvOptions",
    "LookupFiler",
    "LookupOptions",
    "LookupOrchestra",
    "LookupSolver",
]
