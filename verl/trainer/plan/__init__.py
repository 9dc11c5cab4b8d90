"""What a run is, decided once from its configuration: agents, policies, devices, and whether keys
fit together.

Imports no torch, so that a command line is refused within a second.
"""
