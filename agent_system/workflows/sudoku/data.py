"""Writes a training and a test file of puzzles.

    python -m agent_system.workflows.sudoku.data --out data/sudoku --seed 0 --train 2000 --test 200

leaves train.parquet and test.parquet in the folder, in verl's schema; no puzzle of one is in the other, even with its digits renamed.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from agent_system.workflows.sudoku.generate import Kind, generate_split, to_row
from agent_system.workflows.sudoku.puzzle import SIZES, Puzzle

logger = logging.getLogger(__name__)


def write_parquet(puzzles: Sequence[Puzzle], split: str, path: Path) -> None:
    """Write the rows of one split."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist([to_row(puzzle, index, split) for index, puzzle in enumerate(puzzles)]), path)


def write_split(out: Path, num_train: int, num_test: int, seed: int, kind: Kind) -> None:
    """Write `train.parquet` and `test.parquet` under `out`."""
    train, test = generate_split(num_train, num_test, seed, kind)
    out.mkdir(parents=True, exist_ok=True)
    for split, puzzles in (("train", train), ("test", test)):
        write_parquet(puzzles, split, out / f"{split}.parquet")
        logger.info("%s: %d puzzles", out / f"{split}.parquet", len(puzzles))


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and write both files."""
    parser = argparse.ArgumentParser(description="Make Sudoku puzzles with exactly one solution.")
    parser.add_argument("--out", type=Path, required=True, help="folder for train.parquet and test.parquet")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", type=int, default=2000, help="number of training puzzles")
    parser.add_argument("--test", type=int, default=200, help="number of test puzzles")
    parser.add_argument("--size", type=int, default=4, choices=SIZES, help="rows of the board")
    parser.add_argument("--difficulty", default="medium", help="easy, medium, hard, or a number of clues")
    args = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    write_split(args.out, args.train, args.test, args.seed, Kind(args.size, args.difficulty))


if __name__ == "__main__":
    main()
