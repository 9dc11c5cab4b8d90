"""Names of the checkpoints in a folder, for the error about one that is not there."""

from __future__ import annotations

from pathlib import Path

from verl.utils.names import listed


def checkpoints_there(folder: Path, state_file: str) -> str:
    """Return which checkpoints are in a folder, or beside it if it was one; empty if none is.

    Args:
        folder: in which no checkpoint was read.
        state_file: without which a folder is no complete checkpoint.
    """
    for root in (folder / "checkpoints", folder, folder.parent):
        steps = sorted(
            int(number)
            for path in root.glob(f"global_step_*/{state_file}")
            if (number := path.parent.name.removeprefix("global_step_")).isdecimal()
        )
        if steps:
            names = listed([f"global_step_{step}" for step in reversed(steps)])
            return f"; in {root} there are {names} (trainer.max_ckpt_to_keep sets how many are kept)"
    return ""
