"""verl's import path."""

from verl.compat.decorator import *  # noqa: F403
