"""verl's import path."""

from verl.compat.decorator import *  # noqa: F403
from verl.compat.decorator import _check_dispatch_mode, _check_execute_mode  # noqa: F401
