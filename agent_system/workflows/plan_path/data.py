"""Writes `train.parquet` and `test.parquet`:

python -m agent_system.workflows.plan_path.data --out data/plan_path --seed 0 --train 2000 --test 200
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from agent_system.workflows.plan_path.generate import generate_split, to_row
from agent_system.workflows.plan_path.grid import GridMap
from agent_system.workflows.plan_path.options import Difficulty

logger = logging.getLogger(__name__)


def write_split(out: Path, num_train: int, num_test: int, seed: int, difficulty: Difficulty) -> None:
    """Write both files into `out`; no map is in both."""
    out.mkdir(parents=True, exist_ok=True)
    for split, maps in zip(("train", "test"), generate_split(num_train, num_test, seed, difficulty), strict=True):
        write_parquet(maps, split, out / f"{split}.parquet")
        logger.info("%d maps in %s", len(maps), out / f"{split}.parquet")


def write_parquet(maps: Sequence[GridMap], split: str, path: Path) -> None:
    """Write maps as rows of verl's schema."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist([to_row(grid, index, split) for index, grid in enumerate(maps)]), path)


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line and write the files."""
    default = Difficulty()
    parser = argparse.ArgumentParser(description="Make training and test maps.")
    parser.add_argument("--out", type=Path, required=True, help="folder of train.parquet and test.parquet")
    parser.add_argument("--seed", type=int, default=0, help="seed of the maps")
    parser.add_argument("--train", type=int, default=2000, help="training maps")
    parser.add_argument("--test", type=int, default=200, help="test maps")
    parser.add_argument("--size", type=int, default=default.size, help="rows and columns")
    parser.add_argument("--wall-share", type=float, default=default.wall_share, help="share of cells that are walls")
    parser.add_argument("--min-path", type=int, default=default.min_path, help="least moves of the shortest path")
    parser.add_argument("--max-path", type=int, default=default.max_path, help="most moves of the shortest path")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    write_split(args.out, args.train, args.test, args.seed, Difficulty(args.size, args.wall_share, args.min_path, args.max_path))


if __name__ == "__main__":
    main()
