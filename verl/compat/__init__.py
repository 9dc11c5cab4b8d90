"""Names for code written for verl 0.9 that this package does not use itself, re-exported by verl's
import paths (docs/upstream_map.md).
"""
