"""`python -m agent_system.new my_flow` writes a folder with a small workflow that can be trained at
once, as a starting point.
"""
