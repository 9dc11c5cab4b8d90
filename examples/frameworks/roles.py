"""The roles of the math team for programs: how an agent's reply is read, whichever framework asks for it."""

from agent_system import AgentRegistry
from agent_system.workflows.math.team import SOLVER, VERIFIER, SolverAgent, VerifierAgent

for name, role in ((SOLVER, SolverAgent), (VERIFIER, VerifierAgent)):
    AgentRegistry.register(name, orchestra="gateway")(role)
