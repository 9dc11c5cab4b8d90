"""Writes training and test rooms as parquet in verl's schema.

python -m agent_system.workflows.sokoban.data --out data/sokoban --seed 0 --train 2000 --test 200
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from agent_system.workflows.sokoban.generate import Puzzle, generate_split, to_row
from agent_system.workflows.sokoban.options import Difficulty

logger = logging.getLogger(__name__)


def write_split(out: Path, seed: int, num_train: int, num_test: int, difficulty: Difficulty) -> None:
    """Write `train.parquet` and `test.parquet` into the folder `out`, which is made when it is missing."""
    train, test = generate_split(num_train, num_test, seed, difficulty)
    out.mkdir(parents=True, exist_ok=True)
    for split, puzzles in (("train", train), ("test", test)):
        write_parquet(puzzles, split, out / f"{split}.parquet")
        logger.info("sokoban: %d rooms in %s", len(puzzles), out / f"{split}.parquet")


def write_parquet(puzzles: Sequence[Puzzle], split: str, path: Path) -> None:
    """Write one file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist([to_row(puzzle, index, split) for index, puzzle in enumerate(puzzles)]), path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and write both files."""
    easy = Difficulty()
    parser = argparse.ArgumentParser(description="Make Sokoban rooms.")
    parser.add_argument("--out", type=Path, required=True, help="folder for train.parquet and test.parquet")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", type=int, default=2000, help="training rooms")
    parser.add_argument("--test", type=int, default=200, help="test rooms")
    parser.add_argument("--size", type=int, default=easy.size, help="width and height, the ring of walls counted")
    parser.add_argument("--boxes", type=int, default=easy.boxes)
    parser.add_argument("--min-pushes", type=int, default=easy.min_pushes, help="fewest pushes that solve a room, at least")
    parser.add_argument("--max-pushes", type=int, default=easy.max_pushes, help="the same, at most")
    parser.add_argument("--wall-share", type=float, default=easy.wall_share, help="chance of a wall in a cell inside the ring")
    args = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    difficulty = Difficulty(args.size, args.boxes, args.min_pushes, args.max_pushes, args.wall_share)
    write_split(args.out, args.seed, args.train, args.test, difficulty)


if __name__ == "__main__":
    main()
