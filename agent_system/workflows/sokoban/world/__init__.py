"""Rooms: their rules, views, solver, and how they are made."""
