"""Rooms: rules, views, solver and generation."""
