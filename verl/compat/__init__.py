"""What code written for verl 0.9 expects and nothing here uses: verl's import paths re-export it. docs/upstream_map.md lists the names."""
