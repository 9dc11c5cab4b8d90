"""Products, the rates at which roles are right about them, and tasks."""
