"""The content of the files that keys name, on which the results of a search depend."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_system.evolve.propose import texts_in

# Keys that may name modules, before a colon with a function or alone.
MODULES = ("reward.custom_reward_function.path", "reward.agent_functions", "agent.plugins", "agent.orchestra")
# Keys whose files the header of a search has by their content: as tasks, and as weights.
OTHERS = ("data.", "actor_rollout_ref.model.")


def named_files(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of every file that a key names by its path, or as a module.

    Args:
        values: values of keys by their dotted names. Files of tasks and of models do not count.

    Returns the first 16 digits by what the key says.
    """
    hashes = {}
    for key, value in values.items():
        if key.startswith(OTHERS):
            continue
        for text in texts_in(value):
            for name in (text, text.rpartition(":")[0]):
                path = os.path.expanduser(name)
                if not os.path.isfile(path):
                    path = _source(name) if key in MODULES else ""
                if path:
                    hashes[name] = hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
    return hashes


def _source(name: str) -> str:
    """Return the source file of a module; empty if there is none."""
    module = sys.modules.get(name)
    try:
        spec = module.__spec__ if module is not None else importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        # no name of a module, or of a package that fails
        return ""
    origin = spec.origin if spec is not None else None
    return origin if origin is not None and origin.endswith(".py") and os.path.isfile(origin) else ""
