"""Keys that a config written for verl does not have."""

from verl.utils.names import own_key

__all__ = ["own_key"]
