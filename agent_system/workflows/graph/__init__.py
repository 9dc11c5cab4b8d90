"""A team as a file: agents, and the steps in which they are called, as YAML or JSON that names no
code.
"""

from agent_system.workflows.graph.orchestra import GraphOptions, GraphOrchestra
from agent_system.workflows.graph.team import Team

__all__ = ["GraphOptions", "GraphOrchestra", "Team"]
