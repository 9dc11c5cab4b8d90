"""The search for a team: files of teams are edited, played and compared. `verl-mas evolve` runs it."""
