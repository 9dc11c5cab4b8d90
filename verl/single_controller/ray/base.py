"""verl's import path."""

from verl.compat.ray import *  # noqa: F403
