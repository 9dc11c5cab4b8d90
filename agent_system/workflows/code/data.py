"""Writes generated tasks:

python -m agent_system.workflows.code.data --out data/code --seed 0 --train 2000 --test 200

makes `train.parquet` and `test.parquet`. `examples/data_preprocess/code_sets.py` makes rows of other data sets.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from agent_system.workflows.code.generate import generate_split, to_row

logger = logging.getLogger(__name__)


def write_split(out: Path, num_train: int, num_test: int, seed: int) -> None:
    """Write generated tasks into both files; none is in both."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    out.mkdir(parents=True, exist_ok=True)
    for split, tasks in zip(("train", "test"), generate_split(num_train, num_test, seed), strict=True):
        rows = [to_row(task, index, split) for index, task in enumerate(tasks)]
        pq.write_table(pa.Table.from_pylist(rows), out / f"{split}.parquet")
        logger.info("%d tasks in %s", len(rows), out / f"{split}.parquet")


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line and write the files."""
    parser = argparse.ArgumentParser(description="Make training and test tasks.")
    parser.add_argument("--out", type=Path, required=True, help="folder of train.parquet and test.parquet")
    parser.add_argument("--seed", type=int, default=0, help="seed of the tasks")
    parser.add_argument("--train", type=int, default=2000, help="training tasks")
    parser.add_argument("--test", type=int, default=200, help="test tasks")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    write_split(args.out, args.train, args.test, args.seed)


if __name__ == "__main__":
    main()
