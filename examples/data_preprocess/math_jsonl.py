r"""Convert MATH-style jsonl to verl parquet: `problem` (or `question`) with `answer`, or with a `solution` that ends in `\boxed{}`.

    python examples/data_preprocess/math_jsonl.py --input train.jsonl test.jsonl --output data/math --data-source my_math

`level`, `type` and `subject` are kept in `extra_info` when a row has them.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_system.workflows.math.world.rows import find_answer, make_row
from verl.utils.dataset import DatasetError, read_rows, write_rows

logger = logging.getLogger(__name__)
KEPT = ("level", "type", "subject")


def convert(file: Path, data_source: str) -> list[dict[str, Any]]:
    """Return the rows of one file. Raises DatasetError, naming file and row, when a problem or an answer is missing."""
    rows = []
    for index, row in enumerate(read_rows(file)):
        problem, answer = str(row.get("problem") or row.get("question") or ""), find_answer(row)
        if not problem.strip() or not answer:
            raise DatasetError(
                f"{file}, row {index}: needs 'problem' (or 'question') and 'answer' or a 'solution' with \\boxed{{}}; "
                f"columns: {', '.join(row)}"
            )
        extra = {name: str(row.get(name) or "") for name in KEPT}
        rows.append(make_row(problem, answer, data_source=data_source, split=file.stem, index=index, **extra))
    return rows


def main(argv: Sequence[str] | None = None) -> list[Path]:
    """Run the command line; return the files written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--input", nargs="+", type=Path, required=True, help="jsonl, json or parquet files; a file's name becomes its split"
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of the parquet files")
    parser.add_argument("--data-source", default="math", help="name of the data set in metrics")
    args = parser.parse_args(argv)
    written = []
    for file in args.input:
        rows = convert(file, args.data_source)
        written.append(write_rows(rows, args.output / f"{file.stem}.parquet"))
        logger.info("%d rows: %s", len(rows), written[-1])
    return written


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
