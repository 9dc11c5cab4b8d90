"""Maps: rules, views and generation."""
