"""`python -m agent_system.new my_flow`: a folder with a small workflow that trains at once, to change into one's own."""
