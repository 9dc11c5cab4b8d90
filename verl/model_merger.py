"""Write the policies of a checkpoint as Hugging Face models and PEFT adapters:

    verl-mas export --checkpoint DIR --out DIR

`--checkpoint` is a folder `global_step_N`, or the folder of a run, whose newest checkpoint is used.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from verl.models.loader import ModelPathError
from verl.trainer.checkpoint.export import ExportError, export
from verl.trainer.plan.placement import PlacementError
from verl.utils.checkpoint import CheckpointError


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; errors that a user can fix are one line on stderr and exit status 1."""
    parser = argparse.ArgumentParser(
        prog="verl-mas export",
        epilog="See docs/checkpoints.md.",
        description=" ".join((__doc__ or "").partition("\n\n")[0].split()),
    )
    parser.add_argument(
        "--checkpoint", required=True, metavar="DIR", help="global_step_N, or the folder of a run"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="a new or empty folder")
    options = parser.parse_args(arguments)
    try:
        folders = export(options.checkpoint, options.out)
    except (CheckpointError, ExportError, ModelPathError, OSError, PlacementError) as error:
        sys.exit(f"error: {' '.join(str(error).split())}")
    sys.stdout.write("".join(f"{folder}\n" for folder in folders))


if __name__ == "__main__":
    main()
