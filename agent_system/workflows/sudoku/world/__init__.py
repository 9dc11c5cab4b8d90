"""Boards: puzzles, actions, the solver, and how puzzles are made."""
