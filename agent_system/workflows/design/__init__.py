"""A team that an agent designs: the Designer writes the steps of a team file, and the roles of the
run play them in the same episode.
"""

from agent_system.workflows.design.designs import Design, Roles
from agent_system.workflows.design.orchestra import DESIGNER, Designer, DesignOptions, DesignOrchestra
from agent_system.workflows.design.reward import priced

__all__ = ["DESIGNER", "Design", "DesignOptions", "DesignOrchestra", "Designer", "Roles", "priced"]
