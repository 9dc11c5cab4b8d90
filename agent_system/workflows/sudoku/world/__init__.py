"""Boards: puzzles, actions, solver and generation."""
