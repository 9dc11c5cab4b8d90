"""The workflow my_flow: `agent.plugins=[my_flow]` makes its names known."""

from . import env, team

__all__ = ["env", "team"]
