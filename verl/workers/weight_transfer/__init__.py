"""Weight transfers from a policy to an engine: `base.py` has the protocol, every other file one
transfer (`rollout.weight_transfer`), `broadcast/` the parts of `collective.py`.

Imports no torch, so that a name can be checked before torch is imported.
"""

import os
from importlib import import_module
from pathlib import Path

EXPANDABLE_SEGMENTS = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


def expandable_segments() -> bool:
    """Return whether torch's allocator is set to expandable segments, whose memory CUDA IPC cannot
    share.
    """
    settings = ",".join(
        os.environ.get(name, "") for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    )
    return "expandable_segments:true" in settings.lower().replace(" ", "")


def chosen_transfer(name: str, device: str, shared: bool = True) -> str:
    """Return the transfer that a name stands for; all but `auto` stand for themselves.

    On GPUs `auto` is `cuda_ipc` where policy and engine share them and CUDA IPC can be used, and
    `collective` where they have GPUs of their own; otherwise it is `object_store`.

    Args:
        name: `rollout.weight_transfer`.
        device: cpu or cuda, of policy and engine.
        shared: whether policy and engine are on the same devices.
    """
    if name != "auto":
        return name
    if device != "cuda":
        return "object_store"
    return "collective" if not shared else "object_store" if expandable_segments() else "cuda_ipc"


def transfer_names() -> list[str]:
    """Return the names without a module: `auto`, and the files here."""
    files = {file.stem for file in Path(__file__).parent.glob("*.py")}
    return ["auto", *sorted(files - {"__init__", "base"})]


def transfer_exists(name: str) -> bool:
    """Return whether `name` is `auto`, a file here or `module.Class` of a module that can be
    imported.
    """
    module, _, cls = name.rpartition(".")
    if not module:
        return name in transfer_names()
    try:
        return hasattr(import_module(module), cls)
    except ImportError:
        return False
