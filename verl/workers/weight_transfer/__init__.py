"""Weight transfers from a policy to an engine: `base.py` has the protocol, every other file one transfer (`rollout.weight_transfer`).

Imports no torch, so that a name can be checked before torch is imported.
"""

from importlib import import_module
from pathlib import Path


def transfer_exists(name: str) -> bool:
    """Return whether `name` is a file here or `module.Class` of a module that can be imported."""
    module, _, cls = name.rpartition(".")
    if not module:
        return name.isidentifier() and name != "base" and Path(__file__).with_name(f"{name}.py").is_file()
    try:
        return hasattr(import_module(module), cls)
    except ImportError:
        return False
